package explore

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Promise is the promise that an invariant checks: one of this module's by its
// number, or a smaller one from a package's documentation.
type Promise string

// The promises that the models check.
const (
	P1       Promise = "P1"       // no stale write
	P2       Promise = "P2"       // no lost takeover
	P3       Promise = "P3"       // tokens and marks only grow
	P4       Promise = "P4"       // one token, one lease
	P6       Promise = "P6"       // the reason is exact
	P7       Promise = "P7"       // a lost lease is known before the server gives it away
	Once     Promise = "once"     // OncePerToken: a token writes once, and so does a write ID
	Progress Promise = "progress" // nobody waits forever
)

// invariant is a predicate that every reachable state must satisfy. The model
// keeps in its state what it needs to know about the past.
type invariant[S comparable] struct {
	promise Promise
	says    string
	holds   func(*S) bool
}

// goal is something that must happen somewhere, so that "0 violations" is not
// about a model in which nothing happens: a step whose description contains
// says or, if reached is set, a state.
type goal[S comparable] struct {
	says    string
	reached func(*S) bool
}

// emit receives one atomic step: who does what, and the state after it.
type emit[S comparable] func(actor, what string, after S)

// model is a protocol as a transition system. A state is a comparable value
// without pointers, so that it is its own canonical encoding.
type model[S comparable] struct {
	name    string
	workers int
	start   S
	next    func(s S, to emit[S])
	// canon, if set, replaces a state by the representative of its symmetry
	// class. It is sound only where states that differ by it have the same
	// future up to the same difference: workers that differ only in their place
	// in the array.
	canon      func(*S)
	final      func(*S) bool // a state without a next step in which all is well
	mayStick   bool          // states without a next step are not checked
	invariants []invariant[S]
	goals      []goal[S]
}

// only keeps the invariants of one promise whose words contain part, so that a
// mutant shows the intended kind of counterexample.
func (m model[S]) only(promise Promise, part string) runnable {
	m.invariants = slices.DeleteFunc(slices.Clone(m.invariants), func(inv invariant[S]) bool {
		return inv.promise != promise || !strings.Contains(inv.says, part)
	})
	m.mayStick = promise != Progress
	return m
}

func (m model[S]) run() result { return explore(m) }

// runnable is a model with any type of state.
type runnable interface {
	run() result
	only(promise Promise, part string) runnable
}

const noProgress = "nobody waits forever"

// result is what an exploration found.
type result struct {
	model                        string
	workers, states, transitions int
	took                         time.Duration
	// broken is the promise that a reachable state violates; empty if none does.
	broken Promise
	says   string // the invariant, in words
	// trace is a shortest counterexample, as "who: what", and last the state to
	// which it leads.
	trace []string
	last  string
	// missed lists the goals that no state reached.
	missed []string
	// promises lists the checked invariants, as "P1: ...".
	promises []string
}

// maxStates is far above every model here: a mutant that makes one infinite
// should fail, not fill the memory.
const maxStates = 8 << 20

// visited holds the reached states, in order, and where each was reached from.
type visited[S comparable] struct {
	index   map[S]struct{}
	states  []S
	parents []int
}

// add reports whether the state is new.
func (v *visited[S]) add(s S, parent int) bool {
	if _, ok := v.index[s]; ok {
		return false
	}
	v.index[s] = struct{}{}
	v.states, v.parents = append(v.states, s), append(v.parents, parent)
	return true
}

// explore visits every reachable state breadth first, so that the first
// violation has a shortest trace. It stops at the first violation.
func explore[S comparable](m model[S]) result {
	began := time.Now()
	r := result{model: m.name, workers: m.workers}
	for _, inv := range m.invariants {
		r.promises = append(r.promises, string(inv.promise)+": "+inv.says)
	}
	if !m.mayStick {
		r.promises = append(r.promises, string(Progress)+": "+noProgress)
	}
	missing := slices.Clone(m.goals)
	did := map[string]struct{}{} // descriptions of steps

	if m.canon == nil {
		m.canon = func(*S) {}
	}
	start := m.start
	m.canon(&start)
	seen := &visited[S]{index: map[S]struct{}{}}
	seen.add(start, 0)
	bad := -1
	visit := func(i int) {
		s := &seen.states[i]
		for _, inv := range m.invariants {
			if bad < 0 && !inv.holds(s) {
				bad, r.broken, r.says = i, inv.promise, inv.says
			}
		}
		missing = slices.DeleteFunc(missing, func(g goal[S]) bool { return g.reached != nil && g.reached(s) })
	}
	visit(0)
	for i := 0; i < len(seen.states) && bad < 0; i++ {
		enabled := 0
		m.next(seen.states[i], func(_, what string, after S) {
			enabled++
			did[what] = struct{}{}
			m.canon(&after)
			if seen.add(after, i) {
				visit(len(seen.states) - 1)
			}
		})
		r.transitions += enabled
		if bad < 0 && enabled == 0 && !m.mayStick && !m.final(&seen.states[i]) {
			bad, r.broken, r.says = i, Progress, noProgress
		}
		if len(seen.states) > maxStates {
			panic(fmt.Sprintf("explore: model %s has more than %d states", m.name, maxStates))
		}
	}
	r.states = len(seen.states)
	for _, g := range missing {
		happened := func(what string) bool { return strings.Contains(what, g.says) }
		if g.reached != nil || !slices.ContainsFunc(slices.Collect(maps.Keys(did)), happened) {
			r.missed = append(r.missed, g.says)
		}
	}
	if bad >= 0 {
		r.trace, r.last = m.replay(seen, bad)
	}
	r.took = time.Since(began)
	return r
}

// replay walks the parents back from a state and then repeats the steps from the
// start without canonicalization, so that a worker keeps its name. Soundness of
// canon means that each canonical step has a concrete one, so a failure here is
// an error in the model.
func (m model[S]) replay(seen *visited[S], last int) (steps []string, state string) {
	var path []int
	for i := last; i != 0; i = seen.parents[i] {
		path = append(path, i)
	}
	at := m.start
	for _, i := range slices.Backward(path) {
		want, found := seen.states[i], false
		var after S
		m.next(at, func(actor, what string, s S) {
			c := s
			if m.canon(&c); !found && c == want {
				found, after = true, s
				steps = append(steps, actor+": "+what)
			}
		})
		if !found {
			panic("explore: model " + m.name + ": the canonical form is not sound, a step cannot be replayed")
		}
		at = after
	}
	return steps, fmt.Sprintf("%+v", at)
}

// String is the counterexample.
func (r result) String() string {
	if r.broken == "" {
		return fmt.Sprintf("%s: no violation in %d states", r.model, r.states)
	}
	return fmt.Sprintf("%s violates %s: %s; a shortest way, in %d steps:\n%s\nleads to %s",
		r.model, r.broken, r.says, len(r.trace), strings.Join(r.trace, "\n"), r.last)
}
