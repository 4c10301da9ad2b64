package explore

import "slices"

// server emits the steps that are not the workers'.
func (c txConfig) server(s txState, to emit[txState]) {
	// fencepost.retire is one step, its COMMIT: its DELETE waits for a row that
	// a raise has changed, and a raise's UPDATE waits for its DELETE.
	if !s.retired && s.token != 0 && !s.pending() {
		after := s
		after.retired = true
		after.commit(txEntry{logRetire, s.token, s.lease}, true)
		if c.noFloor {
			after.floor = s.floor
		}
		after.forget()
		to("operator", "retires the mark", after)
	}
	// The floor belongs to the store, so another resource's mark also raises
	// it.
	if !s.floored && s.retired {
		after := s
		after.floored = true
		after.commit(txEntry{logFloor, 2, 0}, true)
		to("operator", "retires another resource's mark, 2", after)
	}
	if s.crashed || s.n == 0 && !s.busy() {
		return
	}
	for keep := range s.n + 1 {
		after := s
		after.crashed, after.marks = true, s.onDisk
		for k := range s.n {
			if k < keep {
				after.apply(s.log[k])
			}
		}
		for i := range after.w {
			w := &after.w[i]
			for k := keep; k+1 < w.base; k++ {
				after.undone = after.undone || s.log[k].kind == logWrite && s.log[k].token < c.claims[i].token
			}
			switch w.base = min(w.base, 1); w.pc {
			case txDone:
			case txStopped:
				after.end(i, txDone)
			default:
				after.end(i, txIdle)
			}
		}
		after.onDisk, after.log, after.n = after.marks, [6]txEntry{}, 0
		after.forget()
		what := "crashes and restarts"
		if keep < s.n {
			what += " without the commits that were not flushed"
		}
		to("server", what, after)
	}
}

func (s *txState) busy() bool {
	return slices.ContainsFunc(s.w[:], func(w txWorker) bool { return w.lock != unlocked })
}

func (c txConfig) checks() (out []invariant[txState], goals []goal[txState]) {
	out = []invariant[txState]{
		{P1, "no transaction commits below the mark", func(s *txState) bool { return !s.stale }},
		{P2, "no older holder commits between a newer one's read and commit", func(s *txState) bool { return !s.lost }},
		{P2, "what was read of an older holder after the raise survives a crash", func(s *txState) bool { return !s.undone }},
		{P3, "the mark, or the floor in its place, never falls", func(s *txState) bool { return !s.forgotten }},
		{P4, "one token is not raised under two leases", func(s *txState) bool { return !s.twice }},
		{P6, "the holder whose claim is the mark is not refused", func(s *txState) bool { return !s.refused }},
	}
	goals = []goal[txState]{
		{says: "enter: reads the mark: refused as stale"},
		{says: "raise: reads the mark again: refused as stale"},
		{says: "raise: compares with the floor: refused as stale"},
		{says: "raise: the row was retired; starts over"},
		{says: "without the commits that were not flushed"},
	}
	if c.claims[0] == c.claims[1] {
		goals = append(goals, goal[txState]{"two transactions of one holder run side by side", func(s *txState) bool {
			return s.w[0].pc == txBased && s.w[1].pc == txBased
		}})
	} else {
		goals = append(goals, goal[txState]{says: "refused as conflict"})
	}
	return out, goals
}

func txWorkerLess(a, b *txWorker) bool {
	switch {
	case a.pc != b.pc:
		return a.pc < b.pc
	case a.base != b.base:
		return a.base < b.base
	case a.lock != b.lock:
		return a.lock < b.lock
	case a.left != b.left:
		return a.left < b.left
	case a.saw != b.saw:
		return a.saw < b.saw
	}
	return a.sawL < b.sawL || a.sawL == b.sawL && !a.older && b.older
}
