package oracle

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// The names under which the checks are reported.
const (
	OlderToken  = "older token admitted"
	LostUpdate  = "lost update"
	Counter     = "counter differs from the operations applied"
	Missing     = "acknowledged write is not in the log"
	Twice       = "applied twice"
	Refused     = "refused, and applied all the same"
	Phantom     = "applied without having been asked for"
	NoCause     = "refused without a cause"
	GrantOrder  = "grants do not increase"
	GrantOver   = "grant while another lease ran"
	GrantTwice  = "grant acknowledged that was not made"
	BothHolders = "two holders at one time by their own clocks"
	Unhandled   = "applied without its handler's record"
	Register    = "not linearizable: fenced register"
	Leases      = "a later grant has no higher token"
)

// Checks lists every check, so that tests can show that each can fail.
var Checks = []string{OlderToken, LostUpdate, Counter, Missing, Twice, Refused, Phantom, NoCause,
	GrantOrder, GrantOver, GrantTwice, BothHolders, Unhandled, Register, Leases}

// Violation is a promise that was broken.
type Violation struct {
	Check    string `json:"check"`
	Surface  string `json:"surface"`
	Resource string `json:"resource"`
	Detail   string `json:"detail"`
}

// evidence is what concerns one resource.
type evidence struct {
	resource string
	ops      []*Op
	log      []Entry
	grants   []Grant
	report   func(check, format string, args ...any)
}

// split divides a history by resource and sorts its operations by call.
func (h *History) split(found *[]Violation) []*evidence {
	all := map[string]*evidence{}
	of := func(resource string) *evidence {
		if all[resource] == nil {
			all[resource] = &evidence{resource: resource, report: func(check, format string, args ...any) {
				*found = append(*found, Violation{check, Surface(resource), resource, fmt.Sprintf(format, args...)})
			}}
		}
		return all[resource]
	}
	for _, o := range h.Ops {
		e := of(o.Resource)
		e.ops = append(e.ops, o)
	}
	for _, l := range h.Log {
		e := of(l.Resource)
		e.log = append(e.log, l)
	}
	for _, g := range h.Grants {
		e := of(g.Resource)
		e.grants = append(e.grants, g)
	}
	for r := range h.Final {
		of(r)
	}
	var sorted []*evidence
	for _, r := range slices.Sorted(maps.Keys(all)) {
		e := all[r]
		slices.SortStableFunc(e.ops, func(a, b *Op) int { return cmp.Compare(a.Call, b.Call) })
		slices.SortStableFunc(e.log, func(a, b Entry) int { return cmp.Compare(a.Seq, b.Seq) })
		slices.SortStableFunc(e.grants, func(a, b Grant) int { return cmp.Compare(a.Seq, b.Seq) })
		sorted = append(sorted, e)
	}
	return sorted
}

// Check returns the violations of every invariant but linearizability.
func Check(h *History) []Violation {
	var found []Violation
	for _, e := range h.split(&found) {
		e.order()
		e.chain(h.Final)
		e.answers()
		e.causes()
		e.leases()
		e.acquires()
		e.holders(h.Skewed)
		if h.Handlers[Surface(e.resource)] {
			e.handled()
		}
	}
	return found
}

// order: admitted tokens never decrease, raises included (P1).
func (e *evidence) order() {
	var top Entry
	for _, l := range e.log {
		if l.Token < top.Token {
			e.report(OlderToken, "token %d took effect at %d, after token %d at %d (write %q)", l.Token, l.Seq, top.Token, top.Seq, l.Write)
			continue
		}
		top = l
	}
}

// chain: each write is based on its true predecessor (P2), its counter is the
// number of writes, and no write occurs twice.
func (e *evidence) chain(final map[string]Final) {
	last, n, applied := "", int64(0), int64(0)
	seen := map[string]int64{}
	for _, l := range e.log {
		if l.Raised {
			continue
		}
		applied++
		if at, twice := seen[l.Write]; twice {
			e.report(Twice, "write %q at %d and at %d", l.Write, at, l.Seq)
		}
		seen[l.Write] = l.Seq
		if l.Base != last {
			e.report(LostUpdate, "write %q (token %d, at %d) is built on %q, but %q was there", l.Write, l.Token, l.Seq, l.Base, last)
		} else if l.N != n+1 {
			e.report(Counter, "write %q counts %d after %d", l.Write, l.N, n)
		}
		last, n = l.Write, l.N
	}
	if f, known := final[e.resource]; known && (f.N != applied || f.Write != last) {
		e.report(Counter, "at the end it counts %d by write %q; the log has %d writes, the last %q", f.N, f.Write, applied, last)
	}
}

// responses: what was acknowledged is in the log once, what was refused is not,
// and nothing is in it that no client asked for (P5).
func (e *evidence) answers() {
	logged := map[string]Entry{}
	for _, l := range e.log {
		if !l.Raised {
			logged[l.Write] = l
		}
	}
	asked := map[string]bool{}
	for _, o := range e.ops {
		if o.Kind != Write {
			continue
		}
		asked[o.Write] = true
		l, applied := logged[o.Write]
		switch {
		case applied && l.Token != o.Token:
			e.report(Phantom, "write %q was asked for under token %d and applied under %d", o.Write, o.Token, l.Token)
		case o.Outcome == OK && !applied:
			e.report(Missing, "write %q (token %d)", o.Write, o.Token)
		case !o.unknown() && o.Outcome != OK && applied:
			e.report(Refused, "write %q (token %d) ended with %s: %s", o.Write, o.Token, o.Outcome, o.Error)
		}
	}
	for id := range logged {
		if !asked[id] {
			e.report(Phantom, "write %q", id)
		}
	}
}

// causes: a claim is refused as stale only if a higher token had reached the
// resource, and for no other reason at all: no client here has another's token,
// names a missing resource or sends malformed input (P6).
func (e *evidence) causes() {
	for _, o := range e.ops {
		if o.Kind != Write && o.Kind != Raise {
			continue
		}
		switch {
		case o.unknown(), o.Outcome == OK, o.Outcome == Unavailable:
		case o.Outcome != Stale:
			e.report(NoCause, "%s under token %d ended with %s: %s", o.Kind, o.Token, o.Outcome, o.Error)
		case !slices.ContainsFunc(e.ops, func(p *Op) bool {
			return (p.Kind == Write || p.Kind == Raise) && p.Token > o.Token && p.Call < o.Return
		}):
			e.report(NoCause, "%s under token %d was refused as stale, and nobody had come with a higher one", o.Kind, o.Token)
		}
	}
}

// handled: each write applied behind a handler went through it.
func (e *evidence) handled() {
	by := map[string]bool{}
	for _, o := range e.ops {
		if o.Kind == Handled {
			by[o.Write] = true
		}
	}
	for _, l := range e.log {
		if !l.Raised && !by[l.Write] {
			e.report(Unhandled, "write %q (token %d)", l.Write, l.Token)
		}
	}
}
