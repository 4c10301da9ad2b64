package explore

import "github.com/fencepost-go/fencepost/guard"

// raise is one statement of fencepost.raise, in its own transaction. Each
// statement of a plpgsql function reads with a snapshot of its own.
func (c txConfig) raise(s txState, i int, to emit[txState]) {
	w, mine := &s.w[i], c.claims[i]
	who := mine.of(i)
	reason := guard.ReasonNone
	if w.pc == txRaise || w.pc == txRead {
		reason = verdict(guard.SameOrNewer, markOf(s.token, s.lease), mine.token, mine.lease)
	}
	switch w.pc {
	case txRaise: // without the lock: marks only grow, so a refusal stands
		switch {
		case reason != guard.ReasonNone:
			c.refuse(&s, i)
			to(who, "raise: reads the mark: refused as "+string(reason), s)
		case mine.token == s.token:
			s.end(i, txIdle)
			to(who, "raise: it is the mark already", s)
		default:
			w.pc = txLock
			to(who, "raise: reads the mark: it is lower", s)
		}
	case txLock: // pg_advisory_xact_lock
		if !c.noExclusive {
			if s.others(i, shared) || s.others(i, exclusive) {
				return // waits
			}
			w.lock = exclusive
		}
		w.pc = txRead
		if c.noRecheck {
			if w.pc = txUpdate; s.token == 0 {
				w.pc = txFloor
			}
		}
		to(who, c.orNoLock("raise: takes the exclusive lock", c.noExclusive), s)
	case txRead:
		switch {
		case s.token == 0:
			w.pc = txFloor
			to(who, "raise: there is no mark", s)
		case reason != guard.ReasonNone:
			c.refuse(&s, i)
			to(who, "raise: reads the mark again: refused as "+string(reason), s)
		case mine.token == s.token:
			s.end(i, txIdle)
			to(who, "raise: it is the mark already", s)
		default:
			w.pc = txUpdate
			to(who, "raise: reads the mark again: it is lower", s)
		}
	case txFloor:
		// f >= p_token is stale, equal too: the forgotten mark may have been
		// this token under another lease.
		mark := floorMark(s.floor)
		if c.equalFloor && s.floor == mine.token {
			mark = markOf(s.floor, mine.lease)
		}
		if reason := verdict(guard.SameOrNewer, mark, mine.token, mine.lease); reason != guard.ReasonNone {
			c.refuse(&s, i)
			to(who, "raise: compares with the floor: refused as "+string(reason), s)
			return
		}
		w.pc = txInsert
		to(who, "raise: is above the floor", s)
	case txInsert:
		if s.pending() {
			return // waits for the row
		}
		if s.token != 0 { // unique violation; only without the lock
			s.end(i, txIdle)
			to(who, "raise: the INSERT finds a row and fails", s)
			return
		}
		w.pending, w.pc = true, c.afterRaise()
		to(who, "raise: inserts the mark", s)
	case txUpdate:
		switch {
		case s.pending():
			return // waits for the row
		case s.token == 0:
			w.pc = txRead
			to(who, "raise: the row was retired; starts over", s)
		default:
			w.pending, w.pc = true, c.afterRaise()
			to(who, "raise: updates the mark", s)
		}
	case txCommitRaise:
		s.twice = s.twice || s.top == mine.token && s.topLease != mine.lease
		s.commit(txEntry{logRaise, mine.token, mine.lease}, !c.asyncRaise)
		if mine.token >= s.top {
			s.top, s.topLease = mine.token, mine.lease
		}
		s.forget()
		s.end(i, txIdle)
		to(who, "raise: commits", s)
	}
}

// afterRaise is COMMIT, or the work for the mutant whose raise is part of it.
func (c txConfig) afterRaise() uint8 {
	if c.inWork {
		return txIn
	}
	return txCommitRaise
}

// forget records that the mark, or the floor in its place, fell.
func (s *txState) forget() {
	s.forgotten = s.forgotten || s.token != 0 && s.token < s.top || s.token == 0 && s.floor < s.top
}
