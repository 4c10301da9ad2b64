package oracle

import (
	"cmp"
	"slices"
)

// leases: by the leases' own table grants increase and never overlap (P3), and
// every grant reported to a client was made.
func (e *evidence) leases() {
	made := map[string]Grant{}
	last := int64(0)
	for _, g := range e.grants {
		if g.Token <= last || g.Token <= g.OldToken {
			e.report(GrantOrder, "token %d at %d, after %d (the row had %d)", g.Token, g.Seq, last, g.OldToken)
		}
		last = max(last, g.Token)
		if g.OldLease != "" && g.OldExpires > g.At {
			e.report(GrantOver, "token %d was granted to %s %d us before the lease %s ran out", g.Token, g.Lease, g.OldExpires-g.At, g.OldLease)
		}
		made[g.Lease] = g
	}
	for _, o := range e.ops {
		if o.Kind != Acquire || o.Outcome != OK {
			continue
		}
		if g, ok := made[o.Lease]; !ok || g.Token != o.Token {
			e.report(GrantTwice, "token %d under lease %s; the table has token %d", o.Token, o.Lease, g.Token)
		}
	}
}

// acquires: if one acquire returned before another was called, the other has the
// higher token, whatever the table says (P3).
func (e *evidence) acquires() {
	var byCall []*Op
	for _, o := range e.ops {
		if o.Kind == Acquire && o.Outcome == OK {
			byCall = append(byCall, o)
		}
	}
	byReturn := slices.SortedFunc(slices.Values(byCall), func(a, b *Op) int { return cmp.Compare(a.Return, b.Return) })
	top := int64(0)
	for _, o := range byCall {
		for ; byReturn[0].Return < o.Call; byReturn = byReturn[1:] {
			top = max(top, byReturn[0].Token)
		}
		if o.Token <= top {
			e.report(Leases, "token %d was granted to %s after token %d", o.Token, o.Client, top)
		}
	}
}

// holders: no client is granted a lease while another may still rely on its
// own, by the clocks of the two (P7). It is promised while the server's clock
// does not step.
func (e *evidence) holders(skewed []Span) {
	released := map[string]int64{}
	var held []*Op
	for _, o := range e.ops {
		switch {
		case o.Kind == Release:
			released[o.Lease] = o.Call
		case o.Kind == Acquire && o.Outcome == OK && o.Until != 0:
			held = append(held, o)
		}
	}
	slices.SortFunc(held, func(a, b *Op) int { return cmp.Compare(a.Token, b.Token) })
	for i := 1; i < len(held); i++ {
		before, after := held[i-1], held[i]
		end := before.Until
		if r, ok := released[before.Lease]; ok {
			end = min(end, r)
		}
		over := func(s Span) bool { return s.From < after.Return && before.Call < s.To }
		if after.Return < end && !slices.ContainsFunc(skewed, over) {
			e.report(BothHolders, "token %d was granted %d us before the holder of token %d had to stop", after.Token, (end-after.Return)/1000, before.Token)
		}
	}
}
