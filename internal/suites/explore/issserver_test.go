package explore

import "strings"

// arrive is a request's arrival at the server: renewSQL and releaseSQL in one
// step, under the row's lock, acquireSQL's first.
func (c issuerConfig) arrive(s *issState, i int, kind uint8) string {
	w, who := &s.w[i], workerNames[i]
	switch kind {
	case renewKind:
		if w.where, w.answer = answered, 0; c.renew(s, i) {
			w.answer = 1
			return "renews the lease of " + who
		}
		return "does not renew the lease of " + who
	case releaseKind:
		w.where = answered
		if c.release(s, i) {
			return "frees the lease for " + who
		}
		return "frees nothing for " + who
	}
	// A refusal is a read; the floor is read with the same snapshot.
	if c.taken(s, i) {
		w.where, w.answer = answered, 0
		return "refuses " + who
	}
	w.ran = w.owns && s.row.left > 0
	c.snapshot(s, i)
	if c.sequence {
		s.sequence++
		w.snap = s.sequence
	}
	return "begins the acquire of " + who
}

// snapshot begins the UPDATE of acquireSQL, or the INSERT if there is no row.
func (c issuerConfig) snapshot(s *issState, i int) {
	w := &s.w[i]
	if w.where = begun; s.row.token == 0 {
		w.where = inserting
	}
	if !c.sequence {
		w.snap = s.row.floor
	}
}

func (c issuerConfig) taken(s *issState, i int) bool {
	owner := s.owner()
	return owner >= 0 && owner != i && s.row.left > 0
}

// row is acquireSQL's second step: the WHERE of the UPDATE, evaluated on the
// locked row, and the assignment; or the INSERT, which does nothing if there is a
// row by now, and is followed by the UPDATE again.
func (c issuerConfig) row(s *issState, i int) string {
	w, who := &s.w[i], workerNames[i]
	switch {
	case w.where == begun && c.taken(s, i):
		w.where, w.answer = answered, 0
		return "refuses " + who + " after the wait"
	case w.where == inserting && s.row.token != 0:
		c.snapshot(s, i)
		return "finds another's row, for " + who
	case w.where == begun && s.row.token == 0:
		c.snapshot(s, i)
		return "finds that the row has gone, for " + who
	}
	w.where = answered
	what := "grants the lease to "
	if w.owns && (w.ran || s.row.left > 0) {
		what = "finds its own lease, with the token it had, for "
	}
	w.answer = c.grant(s, i)
	return what + who
}

// renew is renewSQL.
func (c issuerConfig) renew(s *issState, i int) bool {
	if !s.w[i].owns || s.w[i].token != s.row.token || s.row.left == 0 {
		return false
	}
	s.row.left = c.length()
	if !c.asyncRenew {
		s.sync()
	}
	return true
}

// release is releaseSQL; a release of an acquire whose token is not known
// compares only the lease ID. It does not wait for the disk.
func (c issuerConfig) release(s *issState, i int) bool {
	w := &s.w[i]
	if !c.anyLease && (!w.owns || w.token != 0 && w.token != s.row.token) {
		return false
	}
	s.row.left = 0
	s.own(-1)
	if c.deleteRow {
		s.row.token = 0
	}
	return true
}

// tick is one tick of the server's clock. Each holder's clock advances too, or
// loses the tick if it lost none in the preceding ttl.
func (c issuerConfig) tick(s issState, to emit[issState]) {
	if !c.timed {
		if s.row.left > 0 {
			s.row.left, s.disk.left = 0, 0
			to("clock", "the lease expires", s)
		}
		return
	}
	s.row.left = less(s.row.left)
	s.disk.left = less(s.disk.left)
	for slow := range uint8(1) << c.workers {
		after := s
		possible := true
		var names strings.Builder
		for i := range after.w[:c.workers] {
			w := &after.w[i]
			counts := w.left > 0 || w.pc == issAsking || w.pc == issRenewing
			if slow>>i&1 == 1 {
				possible = possible && counts && w.slipped >= ttl
				w.slipped = 0
				names.WriteString(" " + workerNames[i])
				continue
			}
			w.left = less(w.left)
			if w.where != nowhere && w.pc != issReleasing {
				w.age = min(w.age+1, c.promised())
			}
			if w.slipped = min(w.slipped+1, ttl); !counts {
				w.slipped = ttl
			}
			if w.pc == issHeld && w.left == 0 {
				w.end()
			}
		}
		if !possible {
			continue
		}
		if slow == 0 {
			to("clock", "a tick passes", after)
		} else {
			to("clock", "a tick passes, its clock loses a tick for"+names.String(), after)
		}
	}
}

// runs reports whether its acquire is a transaction on the server.
func (w *issWorker) runs() bool { return w.where == begun || w.where == inserting }

func less(n uint8) uint8 { return max(n, 1) - 1 }

// operator is purge, which deletes a long-free row and raises the floor in one
// transaction, and the crash of the server.
func (c issuerConfig) operator(s issState, to emit[issState]) {
	running := false
	for i := range s.w {
		running = running || s.w[i].runs()
	}
	// LOCK TABLE waits for the acquires that run and keeps out new ones, so
	// that none inserts with an older floor.
	if s.purges > 0 && s.row.token != 0 && s.row.left == 0 && (!running || c.noTableLock) {
		after := s
		after.purges--
		if !c.noFloor {
			after.row.floor = max(s.row.floor, s.row.token)
		}
		after.row.token = 0
		after.own(-1)
		after.sync()
		to("operator", "purges the row", after)
	}
	if s.crashes == 0 {
		return
	}
	s.crashes--
	what := "crashes and restarts"
	if s.row != s.disk {
		what += " without the last release"
		if c.asyncAcquire || c.asyncRenew {
			what = "crashes and restarts without what was not flushed"
		}
	}
	s.row = s.disk
	for i := range s.w {
		w := &s.w[i]
		if w.owns = w.ownsOnDisk; w.runs() {
			c.again(w)
		}
	}
	to("server", what, s)
}

func issWorkerLess(a, b *issWorker) bool { return issOrder(a) < issOrder(b) }

// issOrder packs a worker into a number; each field is below 16, most below 4.
func issOrder(w *issWorker) (n uint64) {
	for _, field := range [...]uint8{w.pc, w.where, w.age, w.answer, w.snap, w.token, w.left, w.slipped, w.late} {
		n = n<<4 | uint64(field)
	}
	for _, b := range [...]bool{w.ran, w.owns, w.ownsOnDisk} {
		if n <<= 1; b {
			n++
		}
	}
	return n
}
