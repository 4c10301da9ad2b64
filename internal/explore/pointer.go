package explore

import (
	"fmt"
	"strings"

	"github.com/fencepost-go/fencepost/guard"
)

// ptrConfig is the pointer writer of S3 objects with its garbage collection;
// each field but the first takes away something.
type ptrConfig struct {
	claims [4]claim

	byTokenAlone  bool // all data below the pointer's token is collected
	equalToo      bool // and data of the pointer's own token
	unconditional bool // PUT of the pointer without If-Match
	noGrace       bool // no grace period for readers, or one that counts from the data's own age
}

const (
	ptrIdle = iota
	ptrGet
	ptrRaise
	ptrPut
	ptrDone
)

type ptrWorker struct {
	pc     uint8
	raised bool
	match  uint8 // the version of the pointer that it has read
	kept   uint8 // the data that it named
}

// Each worker has one data object: data i+1 has worker i's token.
type ptrState struct {
	token, lease, data, version uint8 // the pointer; version 0: there is none
	stored                      [4]bool
	w                           [4]ptrWorker

	collecting bool // the collector has read the pointer
	below      uint8
	keep       uint8
	runs       uint8

	reading uint8 // the data that a reader has read the pointer for
	reads   uint8

	stale, cut bool
}

// newPointer models a small sealed pointer to immutable data, as
// s3fence/pointer.go writes it and s3fence/collect.go collects what it has
// left: upload, then compare and swap the pointer, whose ETag is unique. The
// raise keeps the data and puts the new token on the pointer.
func newPointer(name string, c ptrConfig) model[ptrState] {
	m := model[ptrState]{name: name, workers: 4}
	m.start.runs, m.start.reads = 2, 1
	m.next = func(s ptrState, to emit[ptrState]) {
		for i := range s.w {
			c.work(s, i, to)
		}
		c.collect(s, to)
		c.read(s, to)
	}
	m.final = func(*ptrState) bool { return true } // the collector may always come again
	m.show = c.show
	m.invariants = []invariant[ptrState]{
		{P1, "the pointer's token never falls", func(s *ptrState) bool { return !s.stale }},
		{Data, "what the pointer names is there", func(s *ptrState) bool { return s.data == 0 || s.stored[s.data-1] }},
		{Data, "a reader finds what the pointer named", func(s *ptrState) bool { return !s.cut }},
	}
	m.goals = []goal[ptrState]{
		{says: "deletes data"},
		{says: "refused as stale"},
		{says: "PUT of the pointer: 412"},
		{"the pointer has a newer token than its data", func(s *ptrState) bool { return s.data != 0 && s.token > c.claims[s.data-1].token }},
	}
	return m
}

func (c ptrConfig) work(s ptrState, i int, to emit[ptrState]) {
	w, mine := &s.w[i], c.claims[i]
	who := mine.of(i)
	swap := func(data uint8) bool {
		if s.version != w.match && !c.unconditional {
			w.pc = ptrGet
			return false
		}
		s.stale = s.stale || mine.token < s.token
		s.token, s.lease, s.data = mine.token, mine.lease, data
		s.version++
		return true
	}
	switch w.pc {
	case ptrIdle:
		w.pc, s.stored[i] = ptrGet, true
		to(who, "uploads its data", s)
	case ptrGet:
		reason := verdict(guard.SameOrNewer, markOf(s.token, s.lease), mine.token, mine.lease)
		if reason != guard.ReasonNone {
			*w = ptrWorker{pc: ptrDone}
			to(who, "GET of the pointer: refused as "+string(reason), s)
			return
		}
		w.pc, w.match, w.kept = ptrPut, s.version, s.data
		if !w.raised && mine.token > 1 {
			w.pc = ptrRaise
		}
		to(who, "GET of the pointer: admitted", s)
	case ptrRaise:
		if !swap(w.kept) {
			to(who, "PUT of the pointer: 412", s)
			return
		}
		w.raised, w.pc, w.match, w.kept = true, ptrGet, 0, 0
		to(who, "PUT of the pointer: raised, with the data it had", s)
	case ptrPut:
		if !swap(uint8(i) + 1) {
			to(who, "PUT of the pointer: 412", s)
			return
		}
		*w = ptrWorker{pc: ptrDone}
		to(who, "PUT of the pointer: names its own data now", s)
	}
}

// collect is the collector: it reads the pointer, lists the data, and deletes
// one object after the other. It may stop at any time and be arbitrarily slow.
func (c ptrConfig) collect(s ptrState, to emit[ptrState]) {
	if !s.collecting {
		if s.runs > 0 && s.version > 0 {
			s.runs--
			s.collecting, s.below, s.keep = true, s.token, s.data
			to("collector", "reads the pointer", s)
		}
		return
	}
	for d := range s.stored {
		token := c.claims[d].token
		old := token < s.below || c.equalToo && token == s.below
		if !s.stored[d] || !old || s.keep == uint8(d)+1 && !c.byTokenAlone {
			continue
		}
		if s.reading == uint8(d)+1 && !c.noGrace {
			continue // the grace period, which must count from when the pointer left it
		}
		after := s
		after.stored[d] = false
		to("collector", fmt.Sprintf("deletes data %d, of token %d", d+1, token), after)
	}
	s.collecting, s.below, s.keep = false, 0, 0
	to("collector", "ends", s)
}

// read is a reader: the pointer, then its data, in two requests.
func (c ptrConfig) read(s ptrState, to emit[ptrState]) {
	switch {
	case s.reading != 0:
		s.cut = !s.stored[s.reading-1]
		s.reading = 0
		to("reader", "reads the data", s)
	case s.reads > 0 && s.data != 0:
		s.reads--
		s.reading = s.data
		to("reader", "reads the pointer", s)
	}
}

func (c ptrConfig) show(s *ptrState) string {
	var b strings.Builder
	if s.version == 0 {
		b.WriteString("no pointer")
	} else {
		fmt.Fprintf(&b, "pointer: data %d under %s", s.data, showMark(s.token, s.lease))
	}
	b.WriteString("; stored:")
	for d, stored := range s.stored {
		if stored {
			fmt.Fprintf(&b, " data %d", d+1)
		}
	}
	if s.collecting {
		fmt.Fprintf(&b, "; collector goes by token %d", s.below)
	}
	return b.String()
}
