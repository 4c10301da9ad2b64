package explore

import "slices"

// txConfig is the protocol of fenced transactions; each field but the first
// takes away something that the real one has.
type txConfig struct {
	claims [4]claim // of the workers; two workers may be the same holder

	oneSnapshot bool // enter: the mark is read with a snapshot from before the lock
	noShared    bool // enter takes no lock
	noExclusive bool // raise takes no lock
	inWork      bool // raise runs in the work's transaction
	savepoint   bool // enter runs in a subtransaction that may be rolled back
	asyncRaise  bool // raise commits under synchronous_commit = off
	noFloor     bool // retire deletes the mark and raises no floor
	equalFloor  bool // a claim equal to the floor is admitted
	strict      bool // enter: > for >=
	noDecision  bool // enter takes the lock and does not compare
	noRecheck   bool // raise decides only before the lock, not again under it
	noTimeout   bool // nobody ends the transaction of a client that stopped
}

const (
	txIdle = iota
	txSnapshot
	txEntering // holds the shared lock, has not read the mark
	txRaise
	txLock
	txRead
	txFloor
	txInsert
	txUpdate
	txCommitRaise
	txIn // the transaction is fenced
	txBased
	txStopped
	txDone
)

const (
	unlocked = iota
	shared
	exclusive
)

type txWorker struct {
	pc, lock  uint8
	base      uint8 // the number of unflushed commits it has read, plus one; 0 before it reads
	older     bool  // an older holder has committed since it read
	pending   bool  // it has changed the mark's row and not committed
	left      uint8 // transactions to come
	saw, sawL uint8 // a mark read before it is used
}

// stopping is the worker whose client may be stopped forever. It is not one of
// two workers of one holder, which would no longer be alike.
const stopping = 2

// The entries of the server's log.
const (
	logWrite = iota + 1
	logRaise
	logRetire // the resource's own mark
	logFloor  // another resource's mark, which raises the floor to its token
)

type txEntry struct{ kind, token, lease uint8 }

// marks is the table fencepost.marks: the resource's row (token 0: no row) and
// the floor.
type marks struct{ token, lease, floor uint8 }

func (m *marks) apply(e txEntry) {
	switch e.kind {
	case logRaise:
		m.token, m.lease = e.token, e.lease
	case logRetire:
		m.token, m.lease, m.floor = 0, 0, max(m.floor, e.token)
	case logFloor:
		m.floor = max(m.floor, e.token)
	}
}

type txState struct {
	marks             // as committed
	onDisk marks      // as after a crash that loses all of log
	log    [6]txEntry // commits that are not flushed yet
	n      uint8

	retired, floored, crashed bool

	w [4]txWorker

	// What the invariants need to know about the past.
	top, topLease                  uint8 // the highest mark that was committed
	stale, lost, undone, forgotten bool
	twice, refused                 bool
}

// commit makes an entry visible. A commit that waits for the disk takes
// everything before it there, because a server's log is flushed in order.
func (s *txState) commit(e txEntry, sync bool) {
	s.apply(e)
	s.log[s.n] = e
	s.n++
	if !sync {
		return
	}
	s.onDisk, s.log, s.n = s.marks, [6]txEntry{}, 0
	for i := range s.w {
		s.w[i].base = min(s.w[i].base, 1)
	}
}

// pending reports whether a raise has changed the row and not committed.
func (s *txState) pending() bool {
	return slices.ContainsFunc(s.w[:], func(w txWorker) bool { return w.pending })
}

// others reports whether some other worker holds the lock.
func (s *txState) others(i int, lock uint8) bool {
	for k, w := range s.w {
		if k != i && w.lock == lock {
			return true
		}
	}
	return false
}

// newTx models InTx of sqlfence/tx.go on the functions of
// sqlfence/migrations/0001_marks.sql.
func newTx(name string, c txConfig) model[txState] {
	m := model[txState]{name: name, workers: 4}
	for i := range m.start.w {
		m.start.w[i].left = 1
		if i > 0 && c.claims[i].token > 1 {
			m.start.w[i].left = 2
		}
	}
	m.next = func(s txState, to emit[txState]) {
		for i := range s.w {
			switch {
			case s.w[i].pc >= txRaise && s.w[i].pc <= txCommitRaise:
				c.raise(s, i, to)
			default:
				c.work(s, i, to)
			}
		}
		c.server(s, to)
	}
	m.canon = func(s *txState) {
		for i := 1; i < len(s.w); i++ { // workers of one holder are alike
			if c.claims[i] == c.claims[i-1] && txWorkerLess(&s.w[i], &s.w[i-1]) {
				s.w[i], s.w[i-1] = s.w[i-1], s.w[i]
			}
		}
	}
	m.final = func(s *txState) bool {
		for _, w := range s.w {
			if w.pc != txDone {
				return false
			}
		}
		return true
	}
	m.invariants, m.goals = c.checks()
	return m
}

// refuse ends a worker: a refused holder stops.
func (c txConfig) refuse(s *txState, i int) {
	// Only the refusal of the holder whose own claim is the mark is wrong.
	s.refused = s.refused || s.token == c.claims[i].token && s.lease == c.claims[i].lease
	s.end(i, txDone)
}

// end ends worker i's transaction and releases its locks.
func (s *txState) end(i int, pc uint8) {
	w := &s.w[i]
	w.lock, w.pc, w.saw, w.sawL = unlocked, pc, 0, 0
	w.pending = false
	if pc == txDone { // nothing else matters: one state instead of several
		w.left, w.base, w.older = 0, 0, false
	}
}
