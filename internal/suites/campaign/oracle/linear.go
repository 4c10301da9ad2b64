package oracle

import (
	"fmt"
	"math"
	"time"

	"github.com/anishathalye/porcupine"
)

// register is the state of a fenced register: its mark and the last write.
type register struct {
	mark  int64
	write string
}

// step is one operation on it.
type step struct {
	kind  Kind // Raise, Read or Write
	stale bool
	token int64
	write string
}

// registerModel is the specification: a raise or write takes effect if its
// token is not below the mark, and the token becomes the mark; one below the
// mark is refused, and only such a one; a read returns the last write.
var registerModel = porcupine.Model{
	Init: func() any { return register{} },
	Step: func(state, input, _ any) (bool, any) {
		s, in := state.(register), input.(step)
		switch {
		case in.kind == Read:
			return in.write == s.write, s
		case in.stale:
			return in.token < s.mark, s
		case in.token < s.mark:
			return false, s
		case in.kind == Write:
			return true, register{in.token, in.write}
		}
		return true, register{in.token, s.write}
	},
	DescribeOperation: func(input, _ any) string { return fmt.Sprintf("%+v", input) },
}

// Undecided is a resource whose history porcupine could not judge in time.
type Undecided struct {
	Resource string `json:"resource"`
	Ops      int    `json:"ops"`
}

// Linearizable gives each resource's history to porcupine, with that much time.
func Linearizable(h *History, limit time.Duration) ([]Violation, []Undecided) {
	var found []Violation
	var open []Undecided
	for _, e := range h.split(&found) {
		ops := e.registerOps()
		switch porcupine.CheckOperationsTimeout(registerModel, ops, limit) {
		case porcupine.Illegal:
			e.report(Register, "%d operations", len(ops))
		case porcupine.Unknown:
			open = append(open, Undecided{e.resource, len(ops)})
		}
	}
	return found, open
}

// registerOps turns the history into operations whose outcome is known. What a
// client could not learn is taken from the log: a write that is in it took
// effect, between its call and the return of the first acknowledged one after
// it; a write that is not did not. Each raise of the mark is an operation of
// its own, because a write may raise first and write later, or raise and fail.
func (e *evidence) registerOps() []porcupine.Operation {
	var ops []porcupine.Operation
	add := func(s step, call, ret int64) {
		ops = append(ops, porcupine.Operation{Input: s, Call: call, Return: max(call, ret)})
	}
	writes := map[string]*Op{}
	first := map[int64]*Op{}   // by token, the first call that may have raised
	proof := map[int64]int64{} // by token, the first return that shows it raised
	for _, o := range e.ops {
		switch {
		case o.Kind == Read && o.Outcome == OK:
			add(step{kind: Read, write: o.Write}, o.Call, o.Return)
			continue
		case o.Kind == Write:
			writes[o.Write] = o
		case o.Kind != Raise:
			continue
		}
		if first[o.Token] == nil {
			first[o.Token] = o
		}
		switch {
		case !o.unknown() && o.Outcome == Stale:
			add(step{kind: o.Kind, token: o.Token, stale: true}, o.Call, o.Return)
		case o.Return != 0 && o.Outcome == OK:
			if o.Kind == Raise { // whatever the log says about it
				add(step{kind: Raise, token: o.Token}, o.Call, o.Return)
			}
			if p, ok := proof[o.Token]; !ok || o.Return < p {
				proof[o.Token] = o.Return
			}
		}
	}
	// From the end of the log to its beginning, so that each entry knows the
	// earliest return of those after it.
	bound := int64(math.MaxInt64)
	for i := len(e.log) - 1; i >= 0; i-- {
		l := e.log[i]
		if l.Raised {
			if o := first[l.Token]; o != nil {
				if p, ok := proof[l.Token]; ok {
					bound = min(bound, p)
				}
				add(step{kind: Raise, token: l.Token}, o.Call, bound)
			}
			continue
		}
		o := writes[l.Write]
		if o == nil {
			continue // a phantom, which is reported elsewhere
		}
		if o.Return != 0 && o.Outcome == OK {
			bound = min(bound, o.Return)
			add(step{kind: Write, token: l.Token, write: l.Write}, o.Call, o.Return)
			continue
		}
		add(step{kind: Write, token: l.Token, write: l.Write}, o.Call, bound)
	}
	return ops
}
