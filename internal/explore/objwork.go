package explore

import "github.com/fencepost-go/fencepost/guard"

// work is one step of a writer: a holder that takes over raises the object
// (s3fence/raise.go: PUT of the content it has read, under its own token), then
// writes. The first holder has no predecessor and writes at once.
func (c objConfig) work(s objState, i int, to emit[objState]) {
	w := &s.w[i]
	who := c.claims[i].of(i)
	switch w.pc {
	case objIdle:
		w.raised = w.raised || c.noRaise || c.claims[i].token == 1
		w.pc, w.put = objGet, put{wid: writeID(i, w.raised)}
		c.get(s, i, to)
	case objGet:
		c.get(s, i, to)
	case objETag:
		w.pc, w.put.match, w.baseWID = objPut, c.etag(&s), s.wid
		to(who, "GET: takes the ETag from it", s)
	case objPut:
		c.send(s, i, to)
	}
}

// get reads the object and decides: 412, 404 and 409 alike lead here.
func (c objConfig) get(s objState, i int, to emit[objState]) {
	w := &s.w[i]
	who := c.claims[i].of(i)
	if w.doubt {
		switch {
		case c.noWriteID && s.wid != w.baseWID:
			c.finish(&s, i, reportRefused)
			to(who, "GET: takes the 412 for a defeat, reports stale", s)
			return
		case c.noWriteID:
		case c.find(&s, w.put.wid):
			c.finish(&s, i, reportDone)
			to(who, "GET: finds its own write ID", s)
			return
		case s.wid == w.baseWID && c.notThere:
			w.doubt = false
		case s.wid == w.baseWID: // it may still arrive: the same PUT again
		case c.noRecent || c.reaches(&s, w.baseWID):
			w.doubt = false // not there, and its If-Match will never hold again
		case c.hopes:
			c.finish(&s, i, reportDone)
			to(who, "GET: cannot tell whether it has written, reports success", s)
			return
		default:
			c.finish(&s, i, reportUnknown)
			to(who, "GET: cannot tell whether it has written, reports unknown", s)
			return
		}
	}
	if reason := c.admits(&s, i); reason != guard.ReasonNone {
		c.finish(&s, i, reportRefused)
		to(who, "GET: refused as "+string(reason), s)
		return
	}
	if c.twoRequests {
		w.pc = objETag
		c.choose(s, i, "HEAD: the token admits it", to)
		return
	}
	w.pc, w.put.match, w.baseWID = objPut, c.etag(&s), s.wid
	c.choose(s, i, "GET: admitted", to)
}

// choose decides what is written: a raise keeps what it has read, a write keeps
// its first content.
func (c objConfig) choose(s objState, i int, what string, to emit[objState]) {
	w := &s.w[i]
	who := c.claims[i].of(i)
	switch {
	case !w.raised:
		if w.put.content = s.content; s.content == 0 {
			w.put.content = tombstone // the raise of a missing object
		}
		to(who, what+", will raise", s)
	case w.put.content != 0:
		to(who, what+", will write again", s)
	default:
		w.based = c.claims[i].token > 1 // no holder is older than the first
		for _, content := range contents(i) {
			after := s
			after.w[i].put.content = content
			to(who, what+", will write "+contentName(content), after)
		}
	}
}

// send is the PUT of Bucket.apply in s3fence/swap.go, with all its possible
// outcomes. Retries are the client's own (those of the SDK are off), with
// identical bytes.
func (c objConfig) send(s objState, i int, to emit[objState]) {
	w := &s.w[i]
	who := c.claims[i].of(i)
	after := s
	if !c.apply(&after, i, w.put) {
		after.w[i].look()
		to(who, "PUT: 412", after)
	} else {
		c.finish(&after, i, reportDone)
		what := "PUT: 200, raised"
		if w.raised {
			what = "PUT: 200, written"
		}
		to(who, what, after)
	}
	if s.faults > 0 {
		c.fail(s, i, to)
	}
}

// fail emits what may go wrong with the PUT.
func (c objConfig) fail(s objState, i int, to emit[objState]) {
	w, who := &s.w[i], c.claims[i].of(i)
	lost := s
	lost.faults--
	lost.w[i].doubt = true
	to(who, "PUT: the request is lost", lost)

	if w.late.wid == 0 {
		delayed := lost
		delayed.w[i].late = w.put
		to(who, "PUT: the request is delayed, the client gives up on it", delayed)
	}

	conflict := s
	conflict.faults--
	conflict.w[i].doubt = true
	conflict.w[i].look()
	to(who, "PUT: 409, unknown", conflict)

	silent := lost
	what := "412"
	if c.apply(&silent, i, w.put) {
		what = "200"
	}
	to(who, "PUT: "+what+", the answer is lost", silent)
}

// look goes back to reading. It clears what it will not use again: one state
// instead of several.
func (w *objWorker) look() {
	w.pc, w.put.match = objGet, 0
	if !w.doubt {
		w.baseWID = 0
		if !w.raised {
			w.put.content = 0
		}
	}
}

// finish ends a put: a raise that succeeded leads to the write, everything
// else to the report.
func (c objConfig) finish(s *objState, i int, report uint8) {
	w := &s.w[i]
	if report == reportDone && !w.raised {
		// It goes on with what it raised, and caches the ETag only until the
		// next GET: one state less.
		w.raised, w.pc, w.doubt, w.baseWID, w.put = true, objGet, false, 0, put{wid: writeID(i, true)}
		return
	}
	done := s.applied[i].write
	s.boasts = s.boasts || report == reportDone && !done
	s.lied = s.lied || report == reportRefused && done
	*w = objWorker{pc: objDone, report: report, late: w.late, based: w.based && w.late.wid != 0, older: w.older && w.late.wid != 0}
}
