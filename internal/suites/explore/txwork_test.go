package explore

import (
	"strings"

	"github.com/fencepost-go/fencepost/guard"
)

// work is one step of a fenced transaction: BEGIN with fencepost.enter, the
// callback's statements, COMMIT or ROLLBACK.
func (c txConfig) work(s txState, i int, to emit[txState]) {
	w := &s.w[i]
	who := c.claims[i].of(i)
	switch w.pc {
	case txIdle:
		if c.oneSnapshot {
			w.pc, w.saw, w.sawL = txSnapshot, s.token, s.lease
			to(who, "enter: takes its snapshot", s)
			return
		}
		c.shared(s, i, to)
	case txSnapshot:
		c.shared(s, i, to)
	case txEntering:
		c.compare(s, i, to)
	case txIn:
		if c.savepoint && w.lock == shared {
			after := s
			after.w[i].lock = unlocked
			to(who, "rolls back to the savepoint before enter", after)
		}
		if w.base == 0 {
			w.base = s.n + 1
		}
		w.pc = txBased
		to(who, "reads (a later transaction goes by what the first one read)", s)
	case txBased:
		if i == stopping {
			after := s
			after.w[i].pc = txStopped
			to(who, "is stopped forever, its transaction open", after)
		}
		c.end(s, i, to)
	case txStopped:
		// idle_in_transaction_session_timeout, or the raise that terminates the
		// lock's holder after its grace period.
		if !c.noTimeout {
			s.end(i, txDone)
			to("server", "ends the connection of "+who, s)
		}
	}
}

// shared is pg_advisory_xact_lock_shared in fencepost.enter.
func (c txConfig) shared(s txState, i int, to emit[txState]) {
	if s.others(i, exclusive) && !c.noShared {
		return // waits
	}
	w := &s.w[i]
	if w.pc = txEntering; !c.noShared {
		w.lock = shared
	}
	to(c.claims[i].of(i), c.orNoLock("enter: takes the shared lock", c.noShared), s)
}

func (c txConfig) orNoLock(what string, none bool) string {
	if none {
		what, _, _ = strings.Cut(what, ":")
		what += ": takes no lock"
	}
	return what
}

// compare is the SELECT in fencepost.enter, whose snapshot is newer than the
// lock, and its IFs. The floor is not read: without a mark it says to raise
// first, and raise reads it.
func (c txConfig) compare(s txState, i int, to emit[txState]) {
	w, mine := &s.w[i], c.claims[i]
	who := mine.of(i)
	token, lease := s.token, s.lease
	if c.oneSnapshot {
		token, lease = w.saw, w.sawL
	}
	rule := guard.SameOrNewer
	if c.strict {
		rule = guard.OncePerToken
	}
	reason := verdict(rule, markOf(token, lease), mine.token, mine.lease)
	switch {
	case reason != guard.ReasonNone && !c.noDecision:
		c.refuse(&s, i)
		to(who, "enter: reads the mark: refused as "+string(reason), s)
	case mine.token <= token:
		w.pc, w.saw, w.sawL = txIn, 0, 0
		to(who, "enter: reads the mark: admitted", s)
	default: // SF004: this transaction is over
		s.end(i, txRaise)
		to(who, "enter: reads the mark: must raise first", s)
	}
}

// end is COMMIT, or ROLLBACK of a callback that failed. The work commits as
// the server is configured, here without waiting for the disk.
func (c txConfig) end(s txState, i int, to emit[txState]) {
	mine := c.claims[i]
	who := mine.of(i)
	pc := uint8(txIdle)
	if s.w[i].left == 1 {
		pc = txDone
	}
	if s.w[i].left == 2 || c.savepoint || c.inWork { // else it does not differ from a crash of the client
		after := s
		after.w[i].left--
		after.end(i, pc)
		to(who, "rolls back; its work is lost", after)
	}
	if s.w[i].pending { // inWork
		s.commit(txEntry{logRaise, mine.token, mine.lease}, true)
		s.top = max(s.top, mine.token)
	}
	s.stale = s.stale || mine.token < s.top
	s.lost = s.lost || s.w[i].older
	for k := range s.w {
		s.w[k].older = s.w[k].older || s.w[k].base != 0 && mine.token < c.claims[k].token
	}
	s.commit(txEntry{logWrite, mine.token, mine.lease}, false)
	s.w[i].left--
	s.end(i, pc)
	to(who, "writes and commits", s)
}
