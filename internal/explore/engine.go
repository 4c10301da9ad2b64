package explore

import (
	"fmt"
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
	show       func(*S) string
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

func (m model[S]) run() Result { return explore(m) }

// runnable is a model with any type of state.
type runnable interface {
	run() Result
	only(promise Promise, part string) runnable
}

const noProgress = "nobody waits for ever"

// Result is what an exploration found.
type Result struct {
	Model       string
	Workers     int
	States      int
	Transitions int
	Time        time.Duration
	// Broken is the promise that a reachable state violates; empty if none does.
	Broken Promise
	Says   string // the invariant, in words
	// Trace is a shortest counterexample, Trace[0] the start.
	Trace []Step
	// Missed lists the goals that no state reached.
	Missed []string
	// Promises lists the checked invariants, as "P1: ...".
	Promises []string
}

// Step is one atomic step of a trace and the state after it.
type Step struct{ Actor, What, State string }

// maxStates is far above every model here: a mutant that makes one infinite
// should fail, not fill the memory.
const maxStates = 8 << 20

// explore visits every reachable state breadth first, so that the first
// violation has a shortest trace. It stops at the first violation.
func explore[S comparable](m model[S]) Result {
	began := time.Now()
	r := Result{Model: m.name, Workers: m.workers}
	for _, inv := range m.invariants {
		r.Promises = append(r.Promises, string(inv.promise)+": "+inv.says)
	}
	if !m.mayStick {
		r.Promises = append(r.Promises, string(Progress)+": "+noProgress)
	}
	missing := slices.Clone(m.goals)
	did := map[string]struct{}{} // descriptions of steps

	canon := m.canon
	if canon == nil {
		canon = func(*S) {}
	}
	start := m.start
	canon(&start)
	seen := newVisited(start)
	bad := -1
	visit := func(i int) {
		s := &seen.states[i]
		for _, inv := range m.invariants {
			if bad < 0 && !inv.holds(s) {
				bad, r.Broken, r.Says = i, inv.promise, inv.says
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
			canon(&after)
			if seen.add(&after, i) {
				visit(len(seen.states) - 1)
			}
		})
		r.Transitions += enabled
		if bad < 0 && enabled == 0 && !m.mayStick && !m.final(&seen.states[i]) {
			bad, r.Broken, r.Says = i, Progress, noProgress
		}
		if len(seen.states) > maxStates {
			panic(fmt.Sprintf("explore: model %s has more than %d states", m.name, maxStates))
		}
	}
	r.States = len(seen.states)
	for _, g := range missing {
		if g.reached != nil || !containsAny(did, g.says) {
			r.Missed = append(r.Missed, g.says)
		}
	}
	if bad >= 0 {
		r.Trace = trace(m, canon, seen, bad)
	}
	r.Time = time.Since(began)
	return r
}

func containsAny(did map[string]struct{}, part string) bool {
	for what := range did {
		if strings.Contains(what, part) {
			return true
		}
	}
	return false
}
