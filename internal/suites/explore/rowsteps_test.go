package explore

import "github.com/fencepost-go/fencepost/guard"

// newRow models lockclient's lease and sqlfence's single statement on a row,
// with the takeover that raises the row's mark before the read. No holder
// checks its lease again: each writes as if it still had it. Workers start
// alike, and know each other only by token and lease, so their order is a
// symmetry.
func newRow(name string, c rowConfig) model[rowState] {
	m := model[rowState]{name: name, workers: 4}
	for i := range m.start.w {
		if m.start.w[i].left = 2; c.restored {
			m.start.w[i].left = 1
		}
	}
	m.next = func(s rowState, to emit[rowState]) {
		for i := range s.w {
			c.work(s, i, to)
		}
		c.server(s, to)
	}
	m.canon = func(s *rowState) { sortWorkers(s.w[:], rowWorkerLess) }
	m.final = func(s *rowState) bool {
		for _, w := range s.w {
			if w.pc != rowDone {
				return false
			}
		}
		return true
	}
	m.invariants, m.goals = rowInvariants(c), rowGoals(c)
	return m
}

// work is one atomic step of worker i.
func (c rowConfig) work(s rowState, i int, to emit[rowState]) {
	w := &s.w[i]
	who := workerNames[i]
	switch w.pc {
	case rowIdle:
		// acquireSQL in lockclient/statements.go, in one step under the row's
		// lock; the issuer's model splits it.
		if s.held != 0 && !s.expired {
			return
		}
		switch {
		case c.sameToken && s.exists: // DO UPDATE SET lease_id = ..., expires_at = ...
		case c.deleteRow && !s.exists:
			s.issued = 1
		default:
			s.issued++
		}
		s.leases++
		s.exists, s.held, s.expired = true, s.leases, false
		w.token, w.lease = s.issued, s.leases
		for _, other := range s.w {
			s.repeated = s.repeated || !c.restored && other.lease != w.lease && other.token >= w.token
		}
		switch {
		case c.readFirst || !c.takeover:
			w.pc = rowRead
		default:
			w.pc = rowRaise
		}
		to(who, "acquires the lease", s)
	case rowRaise:
		// The takeover: UPDATE ... SET last_fencing_token = $t WHERE (key) AND
		// $t >= last_fencing_token, a statement of its own.
		token, lease := s.mark()
		if reason := verdict(guard.SameOrNewer, c.seen(token, lease, w), w.token, w.lease); reason != guard.ReasonNone {
			c.refuse(&s, i)
			to(who, "raises the row's mark: refused as "+string(reason), s)
			return
		}
		s.commit(rowEntry{w.token, w.lease, false}, !c.asyncRaise)
		if w.pc = rowRead; c.readFirst {
			w.pc = rowWrite
		}
		to(who, "raises the row's mark", s)
	case rowRead:
		w.base = s.n + 1
		if w.pc = rowWrite; c.readFirst {
			w.pc = rowRaise
		}
		to(who, "reads the row", s)
	case rowWrite:
		if c.checkFirst {
			token, lease := s.mark()
			if reason := verdict(c.rule, c.seen(token, lease, w), w.token, w.lease); reason != guard.ReasonNone {
				c.refuse(&s, i)
				to(who, "compares the mark it read: refused as "+string(reason), s)
				return
			}
			w.pc = rowChecked
			to(who, "compares the mark it read: may write", s)
			return
		}
		c.write(s, i, to)
	case rowChecked:
		c.write(s, i, to)
	case rowRelease:
		// releaseSQL compares the lease ID; a lease that is not ours stays.
		if s.held == w.lease {
			s.held, s.exists = 0, !c.deleteRow
		}
		w.pc = rowDone
		to(who, "releases the lease", s)
	}
}

// write models Table.Update in sqlfence/update.go: compare and write in one
// statement, which PostgreSQL re-evaluates on the locked row.
func (c rowConfig) write(s rowState, i int, to emit[rowState]) {
	w := &s.w[i]
	who := workerNames[i]
	token, lease := s.mark()
	mark := c.seen(token, lease, w)
	reason := guard.ReasonNone
	switch {
	case c.noClaim || w.pc == rowChecked:
	case c.strict:
		reason = verdict(guard.OncePerToken, mark, w.token, w.lease)
	case c.spentWrites:
		reason = verdict(guard.SameOrNewer, mark, w.token, w.lease)
	default:
		reason = verdict(c.rule, mark, w.token, w.lease)
	}
	if reason != guard.ReasonNone {
		c.refuse(&s, i)
		to(who, "writes: refused as "+string(reason), s)
		return
	}
	s.stale = s.stale || w.token < s.top
	for k := range s.n {
		e := s.log[k]
		s.lost = s.lost || e.write && k+1 >= w.base && e.token < w.token
		s.again = s.again || c.rule == guard.OncePerToken && e.write && e.token == w.token && e.lease == w.lease
		s.shared = s.shared || e.write && e.token == w.token && e.lease != w.lease
	}
	told := s.top
	s.commit(rowEntry{w.token, w.lease, true}, c.rule == guard.OncePerToken && !c.asyncWrite)
	if c.rule == guard.OncePerToken && !w.lost {
		lost := s
		lost.top, lost.w[i].lost, lost.w[i].pc = told, true, rowWrite
		to(who, "writes; the response is lost, it will try again", lost)
	}
	w.base = s.n + 1
	w.pc = rowWrite
	if w.left--; w.left == 0 || c.rule == guard.OncePerToken {
		w.left, w.pc = 0, rowRelease
	}
	to(who, "writes", s)
}

// seen returns the mark as the table shows it: without a lease column it does
// not say whose token it is (Table.mark in sqlfence/update.go).
func (c rowConfig) seen(token, lease uint8, w *rowWorker) guard.Mark {
	if c.noLease && token == w.token {
		lease = w.lease
	}
	return markOf(token, lease)
}

func (c rowConfig) refuse(s *rowState, i int) {
	w := &s.w[i]
	token, lease := s.mark()
	s.refused = s.refused || c.rule == guard.SameOrNewer && token == w.token && lease == w.lease
	w.left, w.pc = 0, rowDone
}

// commit appends to the log. A commit that waits for the disk takes everything
// before it there, because the log of a server is flushed in order.
func (s *rowState) commit(e rowEntry, sync bool) {
	s.log[s.n] = e
	s.n++
	s.top = max(s.top, e.token)
	if sync {
		s.flushed = s.n
	}
}

// server emits the steps that are not the workers'.
func (c rowConfig) server(s rowState, to emit[rowState]) {
	if s.held != 0 && !s.expired {
		after := s
		after.expired = true
		to("clock", "the lease expires", after)
	}
	if c.restored && !s.restored && s.issued > 0 {
		after := s
		after.restored, after.issued, after.held = true, s.issued-1, 0
		to("operator", "restores the issuer from a backup of one grant ago", after)
	}
	if s.crashed {
		return
	}
	for keep := s.flushed; keep < s.n; keep++ {
		after := s
		after.crashed = true
		for i := range after.w {
			w := &after.w[i]
			for k := keep; k+1 < w.base; k++ {
				after.undone = after.undone || c.takeover && !c.readFirst && s.log[k].write && s.log[k].token < w.token
			}
			w.base = min(w.base, keep+1)
		}
		for k := keep; k < s.n; k++ {
			after.log[k] = rowEntry{}
		}
		after.n = keep
		to("server", "crashes and restarts without the commits that were not flushed", after)
	}
}
