package explore

// client emits worker i's own steps: lockclient's Acquire under one lease ID,
// Renew, Release.
func (c issuerConfig) client(s issState, i int, to emit[issState]) {
	w, who := &s.w[i], workerNames[i]
	ask := func(pc uint8, what string) {
		after := s
		a := &after.w[i]
		a.pc, a.where, a.age = pc, sent, 0
		if pc == issReleasing {
			a.left = 0 // ended for the holder, whatever happens to the request
		}
		to(who, what, after)
	}
	switch w.pc {
	case issIdle:
		ask(issAsking, "asks for the lease")
	case issHeld:
		if w.left > 0 {
			ask(issRenewing, "asks for a renewal")
			ask(issReleasing, "releases: the lease has ended for it")
		}
	}
	if w.where != answered {
		return
	}
	if s.faults > 0 {
		lost := s
		lost.faults--
		c.again(&lost.w[i])
		to("network", "loses the response to "+who+", which asks again", lost)
	}
	c.hear(s, i, to)
}

// again resends the same request: the same lease ID, a later time.
func (c issuerConfig) again(w *issWorker) {
	w.where, w.age, w.answer, w.snap, w.ran = sent, 0, 0, 0, false
	if w.pc == issRenewing && w.left == 0 {
		w.end()
	}
}

// end ends a worker's lease; the worker may still have a request in flight.
func (w *issWorker) end() {
	done := issWorker{pc: issDone, slipped: ttl, late: w.late, owns: w.owns, ownsOnDisk: w.ownsOnDisk}
	if w.late != 0 {
		done.token = w.token
	}
	*w = done
}

// hear is the arrival of a response.
func (c issuerConfig) hear(s issState, i int, to emit[issState]) {
	w, who := &s.w[i], workerNames[i]
	until := c.promised() - w.age // deadline(sent, ttl): from before the request was sent
	switch {
	case !c.timed:
		until = 1
	case c.fromAnswer:
		until = c.promised()
	}
	answer := w.answer
	w.where, w.answer, w.snap, w.age, w.ran = nowhere, 0, 0, 0, false
	switch w.pc {
	case issAsking:
		switch {
		case answer == 0:
			w.pc = issIdle
			to(who, "hears that the lease is held", s)
		case until == 0: // handOut in lockclient/acquire.go
			w.pc, w.where = issReleasing, sent
			to(who, "gets a grant that comes after its own deadline, and releases it", s)
		default:
			w.pc, w.token, w.left = issHeld, answer, until
			s.shared = s.shared || s.got[answer]
			s.got[answer], s.top = true, max(s.top, answer)
			to(who, "has the lease", s)
		}
	case issRenewing:
		switch {
		case w.left == 0: // extend in lockclient/lease.go: an ended lease stays ended
			w.end()
			to(who, "gets the response to a renewal after its deadline", s)
		case answer == 0:
			w.end()
			to(who, "hears that the server does not have the lease", s)
		default:
			w.pc, w.left = issHeld, max(w.left, until)
			to(who, "hears that the lease is renewed", s)
		}
	case issReleasing:
		w.end()
		to(who, "hears that the lease is released", s)
	}
}

// network delivers requests to the server, or loses them.
func (c issuerConfig) network(s issState, i int, to emit[issState]) {
	w, who := &s.w[i], workerNames[i]
	kind := [...]uint8{issAsking: acquireKind, issRenewing: renewKind, issReleasing: releaseKind, issDone: 0}[w.pc]
	switch w.where {
	case sent:
		after := s
		what := c.arrive(&after, i, kind)
		to("server", what, after)
		if s.faults == 0 || w.pc == issRenewing && w.left == 0 {
			break
		}
		lost := s
		lost.faults--
		c.again(&lost.w[i])
		to("network", "loses the request of "+who+", which asks again", lost)
		if w.late == 0 {
			lost.w[i].late = kind
			to("network", "delays the request of "+who+", which asks again", lost)
		}
	case begun, inserting:
		after := s
		what := c.row(&after, i)
		to("server", what, after)
	}
	if w.late == 0 {
		return
	}
	after := s
	late := &after.w[i]
	late.late = 0
	switch w.late {
	case acquireKind:
		// Nobody gets the response. All its steps happen at once.
		keep := *late
		c.arrive(&after, i, acquireKind)
		for late.runs() {
			c.row(&after, i)
		}
		late.where, late.answer, late.snap, late.ran = keep.where, keep.answer, keep.snap, keep.ran
		to("network", "delivers the delayed acquire of "+who, after)
	case renewKind:
		c.renew(&after, i)
		to("network", "delivers the delayed renewal of "+who, after)
	case releaseKind:
		c.release(&after, i)
		to("network", "delivers the delayed release of "+who, after)
	}
}
