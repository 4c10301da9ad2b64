package explore

import (
	"fmt"
	"strings"

	"github.com/fencepost-go/fencepost/guard"
)

// httpConfig is the protocol of a fenced HTTP service with several replicas;
// each field but the first three takes away something that the real one has.
type httpConfig struct {
	claims    [4]claim
	replicas  uint8
	noRestart bool // and no other fault

	admitOnly   bool // the handler's write is not fenced
	postCheck   bool // nor is it with this, but the mark is read again before the answer
	memory      bool // each replica has its marks in its own memory
	twoMarks    bool // the handler's write compares with a mark of its own, the row's
	noHeader    bool // a request without a token passes
	failOpen    bool // a request passes when the store is unavailable
	tokensAlone bool // the lease header is not compared
}

const (
	httpRaise = iota
	httpRaising
	httpRead
	httpDoor
	httpAdmitting // the mark was read at the door and must be raised
	httpHandler
	httpEntered // a fenced transaction is open
	httpWritten // postCheck: the write is done, the answer is not given
	httpDone
)

type httpWorker struct {
	pc, replica, left uint8
	based, older      bool // it has read; an older holder has written since
	unclaimed         bool // the handler runs without a claim that was compared
}

type httpState struct {
	// marks[0] is the shared store's; with memory, one for each replica.
	marks  [2]struct{ token, lease uint8 }
	row    struct{ token, lease uint8 } // twoMarks
	faults uint8                        // restarts, removed headers, outages to come
	w      [4]httpWorker

	top                       uint8
	wrote                     [8]uint8 // by token: the lease that wrote
	stale, lost, shared, open bool
}

// newAdmission models Admit of httpfence/middleware.go at the door of a handler
// that writes in InTx of sqlfence/tx.go, and the Raise endpoint that a new
// holder calls before it reads. The store is that of sqlfence/store.go, on the
// marks that InTx compares with.
func newAdmission(name string, c httpConfig) model[httpState] {
	m := model[httpState]{name: name, workers: 4}
	if m.start.faults = 2; c.noRestart {
		m.start.faults = 0
	}
	for i := range m.start.w {
		m.start.w[i].left = 2
	}
	m.next = func(s httpState, to emit[httpState]) {
		for i := range s.w {
			c.work(s, i, to)
		}
		if s.faults > 0 {
			c.restart(s, to)
		}
	}
	m.canon = func(s *httpState) {
		for i := 1; i < len(s.w); i++ { // requests of one holder are alike
			if c.claims[i] == c.claims[i-1] && httpWorkerLess(&s.w[i], &s.w[i-1]) {
				s.w[i], s.w[i-1] = s.w[i-1], s.w[i]
			}
		}
	}
	m.final = func(s *httpState) bool {
		for _, w := range s.w {
			if w.pc != httpDone {
				return false
			}
		}
		return true
	}
	m.show = c.show
	m.invariants = []invariant[httpState]{
		{P1, "no handler writes below the mark", func(s *httpState) bool { return !s.stale }},
		{P2, "no older request writes between a newer holder's read and write", func(s *httpState) bool { return !s.lost }},
		{P4, "one token does not write under two leases", func(s *httpState) bool { return !s.shared }},
		{P5, "no handler writes whose claim was not compared", func(s *httpState) bool { return !s.open }},
	}
	m.goals = []goal[httpState]{
		{says: "POST at the door of replica 2: refused as stale"},
		{says: "as it raises: refused as stale"},
		{says: "door of replica 1: refused as conflict"},
		{says: "InTx: refused as stale"},
		{says: "answers 428"},
		{says: "answers 503"},
		{says: "restarts"},
		{"two older requests are in their handlers when a newer one has entered", func(s *httpState) bool {
			return s.w[0].pc == httpHandler && s.w[1].pc == httpHandler && s.w[2].pc == httpEntered
		}},
	}
	return m
}

// restart ends the requests in a replica's handlers; their transactions roll
// back. A holder that gets no answer does not know the outcome, and stops.
func (c httpConfig) restart(s httpState, to emit[httpState]) {
	for r := range c.replicas {
		after := s
		after.faults--
		for i := range after.w {
			w := &after.w[i]
			if w.replica == r && (w.pc == httpRaising || w.pc == httpAdmitting || w.pc >= httpHandler && w.pc <= httpWritten) {
				c.stop(&after, i)
			}
		}
		if c.memory {
			after.marks[r].token, after.marks[r].lease = 0, 0
		}
		to("replica "+number(r+1), "restarts", after)
	}
}

func (c httpConfig) stop(s *httpState, i int) { s.w[i] = httpWorker{pc: httpDone} }

// refused returns the verdict at the door or in the transaction.
func (c httpConfig) refused(token, lease uint8, mine claim) guard.Reason {
	if c.tokensAlone {
		lease = mine.lease
	}
	return verdict(guard.SameOrNewer, markOf(token, lease), mine.token, mine.lease)
}

func httpWorkerLess(a, b *httpWorker) bool {
	return httpOrder(a) < httpOrder(b)
}

func httpOrder(w *httpWorker) (n int) {
	n = int(w.pc)<<8 | int(w.replica)<<6 | int(w.left)<<4
	for k, b := range [...]bool{w.based, w.older, w.unclaimed} {
		if b {
			n |= 1 << k
		}
	}
	return n
}

func (c httpConfig) show(s *httpState) string {
	var b strings.Builder
	switch {
	case c.memory:
		fmt.Fprintf(&b, "marks: replica 1 %s, replica 2 %s", showMark(s.marks[0].token, s.marks[0].lease), showMark(s.marks[1].token, s.marks[1].lease))
	case c.twoMarks:
		fmt.Fprintf(&b, "mark of the store %s, of the row %s", showMark(s.marks[0].token, s.marks[0].lease), showMark(s.row.token, s.row.lease))
	default:
		fmt.Fprintf(&b, "mark %s", showMark(s.marks[0].token, s.marks[0].lease))
	}
	for i, w := range s.w {
		switch w.pc {
		case httpHandler:
			b.WriteString("; " + workerNames[i] + " in a handler of replica " + number(w.replica+1))
		case httpEntered:
			b.WriteString("; " + workerNames[i] + " in a fenced transaction")
		}
	}
	return b.String()
}
