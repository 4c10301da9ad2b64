package explore

import "github.com/fencepost-go/fencepost/guard"

// work is one step of holder i, or of its request.
func (c httpConfig) work(s httpState, i int, to emit[httpState]) {
	w, mine := &s.w[i], c.claims[i]
	who := mine.of(i)
	switch w.pc {
	case httpRaise:
		c.arrive(s, i, "POST /raise at the", httpRaising, to)
	case httpRaising:
		c.raise(s, i, httpRead, "raises the mark", to)
	case httpRead:
		w.pc, w.based = httpDoor, true
		to(who, "GET: reads", s)
	case httpDoor:
		c.arrive(s, i, "POST at the", httpAdmitting, to)
		if s.faults == 0 {
			return
		}
		s.faults--
		lost, down := s, s
		if c.noHeader {
			lost.w[i].pc, lost.w[i].unclaimed = httpHandler, true
			to(who, "POST, a proxy has removed the header: passes unexamined", lost)
		} else {
			c.stop(&lost, i)
			to(who, "POST, a proxy has removed the header: answers 428", lost)
		}
		if c.failOpen {
			down.w[i].pc, down.w[i].unclaimed = httpHandler, true
			to(who, "POST, the store cannot be asked: passes unexamined", down)
		} else {
			c.stop(&down, i)
			to(who, "POST, the store cannot be asked: answers 503", down)
		}
	case httpAdmitting:
		c.raise(s, i, httpHandler, "POST: the mark is raised, the handler begins", to)
	case httpHandler:
		c.enter(s, i, to)
	case httpEntered:
		after := s
		c.stop(&after, i)
		to(who, "InTx: rolls back, the request fails", after)
		c.write(&s, i)
		to(who, "InTx: writes and commits", s)
	case httpWritten:
		mark := s.marks[0]
		if reason := c.refused(mark.token, mark.lease, mine); reason != guard.ReasonNone {
			c.stop(&s, i)
			to(who, "compares again: answers 412", s)
			return
		}
		c.leave(&s, i)
		to(who, "compares again: answers 200", s)
	}
}

// arrive is the reading part of the store's Admit: markSQL and Decide in
// sqlfence/store.go. A claim above the mark goes on to raise it.
func (c httpConfig) arrive(s httpState, i int, what string, raise uint8, to emit[httpState]) {
	mine := c.claims[i]
	for r := range c.replicas {
		after := s
		w := &after.w[i]
		w.replica = r
		mark := after.marks[0]
		if c.memory {
			mark = after.marks[r]
		}
		door := what + " door of replica " + number(r+1) + ": "
		reason := c.refused(mark.token, mark.lease, mine)
		switch {
		case reason != guard.ReasonNone:
			c.stop(&after, i)
			to(mine.of(i), door+"refused as "+string(reason), after)
		case mine.token > mark.token:
			w.pc = raise
			to(mine.of(i), door+"must raise", after)
		default:
			if w.pc = httpHandler; raise == httpRaising {
				w.pc, w.replica = httpRead, 0
			}
			to(mine.of(i), door+"admitted", after)
		}
	}
}

// raise is fencepost.raise; the model of transactions splits it. It waits for
// the fenced transactions of older holders.
func (c httpConfig) raise(s httpState, i int, next uint8, what string, to emit[httpState]) {
	mine, w := c.claims[i], &s.w[i]
	mark := &s.marks[0]
	if c.memory {
		mark = &s.marks[w.replica]
	}
	if reason := c.refused(mark.token, mark.lease, mine); reason != guard.ReasonNone {
		c.stop(&s, i)
		to(mine.of(i), "door, as it raises: refused as "+string(reason), s)
		return
	}
	for k, other := range s.w {
		if k != i && other.pc == httpEntered && c.claims[k] != mine && !c.twoMarks {
			return
		}
	}
	mark.token, mark.lease = mine.token, mine.lease
	s.top = max(s.top, mine.token)
	if w.pc = next; next == httpRead {
		w.replica = 0
	}
	to(mine.of(i), what, s)
}

// enter is the handler's fenced write: fencepost.enter, with the transaction
// open until COMMIT.
func (c httpConfig) enter(s httpState, i int, to emit[httpState]) {
	w, mine := &s.w[i], c.claims[i]
	who := mine.of(i)
	mark := &s.marks[0]
	switch {
	case c.admitOnly || c.postCheck || w.unclaimed:
		c.write(&s, i)
		if c.postCheck {
			s.w[i] = w.at(httpWritten)
		}
		to(who, "writes in the handler", s)
		return
	case c.memory: // the handler's store is its replica's
		mark = &s.marks[w.replica]
	case c.twoMarks: // a single statement on the row
		mark = &s.row
	}
	if reason := c.refused(mark.token, mark.lease, mine); reason != guard.ReasonNone {
		c.stop(&s, i)
		to(who, "InTx: refused as "+string(reason), s)
		return
	}
	if c.twoMarks {
		mark.token, mark.lease = mine.token, mine.lease
		c.write(&s, i)
		to(who, "writes the row in one statement, compared with the row's mark", s)
		return
	}
	w.pc = httpEntered
	to(who, "InTx: enters", s)
}

func (w httpWorker) at(pc uint8) httpWorker {
	w.pc = pc
	return w
}

// write is the moment at which the handler's write takes effect.
func (c httpConfig) write(s *httpState, i int) {
	w, mine := &s.w[i], c.claims[i]
	s.stale = s.stale || mine.token < s.top
	s.lost = s.lost || w.older
	s.open = s.open || w.unclaimed
	s.shared = s.shared || s.wrote[mine.token] != 0 && s.wrote[mine.token] != mine.lease
	s.wrote[mine.token] = mine.lease
	for k := range s.w {
		s.w[k].older = s.w[k].older || s.w[k].based && mine.token < c.claims[k].token
	}
	if !c.postCheck {
		c.leave(s, i)
	}
}

// leave ends a request; the holder has another one, based on what it first
// read.
func (c httpConfig) leave(s *httpState, i int) {
	w := &s.w[i]
	if w.left--; w.left == 0 {
		c.stop(s, i)
		return
	}
	w.pc, w.replica = httpDoor, 0
}
