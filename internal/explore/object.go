package explore

import "github.com/fencepost-go/fencepost/guard"

// objConfig is the protocol of fenced S3 objects; each field but the first
// takes away something that the real one has.
type objConfig struct {
	claims [4]claim

	bodyETag       bool // the token is in the metadata alone, the ETag is of the body
	emptyTombstone bool // tombstones have no body, and so the same ETag
	realDelete     bool // deleting removes the object
	unconditional  bool // PUT without If-Match
	twoRequests    bool // the token comes from one request, the ETag from a later one
	noRaise        bool // no raise at takeover
	noWriteID      bool // after a lost answer, 412 is taken for a failure
	noRecent       bool // a write is recognised only while it is the object's latest
	notThere       bool // a write that is not in the object counts as lost, though it may still arrive
	hopes          bool // an unknown outcome is reported as written
}

const (
	objIdle = iota
	objGet
	objETag // twoRequests: has the token, not the ETag
	objPut
	objDone
)

// What a worker reports of its write in the end.
const (
	reportNone = iota
	reportDone
	reportRefused // stale or conflict: it has not taken effect
	reportUnknown
)

const (
	contentX = iota + 1
	contentY
	tombstone
)

// put is a conditional PUT: what it writes, and the ETag of its condition (0 is
// If-None-Match: *).
type put struct{ wid, content, match uint8 }

type objWorker struct {
	pc      uint8
	raised  bool // the raise is done, the write is next
	doubt   bool // an attempt at this put was not answered
	based   bool // its content is computed from what it has read
	older   bool // an older holder has written since
	report  uint8
	put     put
	baseWID uint8 // the write ID of the object that put replaces
	late    put   // an attempt that is still in flight; wid 0: none
}

type objState struct {
	// The object; token 0: there is none. recent are the write IDs before wid.
	token, lease, wid, content uint8
	recent                     [2]uint8

	faults  uint8 // how many requests and answers may still be lost or delayed
	applied [4]struct{ raise, write bool }
	w       [4]objWorker

	top                              uint8
	stale, lost, twice, lied, boasts bool
}

func (s *objState) exists() bool { return s.token != 0 }

// etag returns the store's ETag of the object. 0: there is no object.
func (c objConfig) etag(s *objState) uint8 {
	switch {
	case !s.exists():
		return 0
	case c.bodyETag:
		return s.content
	case c.emptyTombstone && s.content == tombstone:
		return 255
	}
	return s.wid // sealed: the write ID is part of the body
}

// Write IDs: worker i raises with 1+2i and writes with 2+2i.
func writeID(i int, write bool) uint8 {
	if write {
		return uint8(2*i + 2)
	}
	return uint8(2*i + 1)
}

// contents returns what worker i may write. Two holders write the same X.
func contents(i int) []uint8 {
	return [4][]uint8{{contentX, tombstone}, {contentY}, {contentX}, {contentX, tombstone}}[i]
}

// newObject models the compare-and-swap loop of s3fence/swap.go with fateOf of
// s3fence/state.go, for sealed objects. A store's GET, PUT and DELETE are
// atomic; anything may happen between them, and to requests and answers. An
// object's list of recent writes has two entries here, so that it is sometimes
// too short.
func newObject(name string, c objConfig) model[objState] {
	m := model[objState]{name: name, workers: 4}
	m.start.faults = 2
	m.next = func(s objState, to emit[objState]) {
		for i := range s.w {
			c.work(s, i, to)
			if late := s.w[i].late; late.wid != 0 {
				after := s
				after.w[i].late = put{}
				did := c.apply(&after, i, late)
				to("network", "delivers the delayed PUT of "+c.claims[i].of(i)+": "+answer(did), after)
			}
		}
	}
	m.final = func(s *objState) bool {
		for _, w := range s.w {
			if w.pc != objDone {
				return false
			}
		}
		return true
	}
	m.show = c.show
	m.invariants, m.goals = objInvariants(), objGoals()
	return m
}

func answer(applied bool) string {
	if applied {
		return "200"
	}
	return "412"
}

// apply is the store's part of a PUT: false is 412, or 404.
func (c objConfig) apply(s *objState, i int, p put) bool {
	if p.match != c.etag(s) && !c.unconditional {
		return false
	}
	mine, w := c.claims[i], &s.w[i]
	write := p.wid == writeID(i, true)
	s.stale = s.stale || mine.token < s.top
	if write {
		s.lost = s.lost || w.older
		s.twice = s.twice || s.applied[i].write
		s.applied[i].write = true
		s.lied = s.lied || w.report == reportRefused
	} else {
		s.twice = s.twice || s.applied[i].raise
		s.applied[i].raise = true
		w.based, w.older = true, false
	}
	for k := range s.w {
		s.w[k].older = s.w[k].older || write && s.w[k].based && mine.token < c.claims[k].token
	}
	s.top = max(s.top, mine.token)
	s.recent = [2]uint8{s.wid, s.recent[0]}
	s.token, s.lease, s.wid, s.content = mine.token, mine.lease, p.wid, p.content
	if c.realDelete && p.content == tombstone {
		s.token, s.lease, s.wid, s.content, s.recent = 0, 0, 0, 0, [2]uint8{}
	}
	return true
}

// find models state.made in s3fence/state.go: the object or its history has the
// write.
func (c objConfig) find(s *objState, wid uint8) bool {
	return s.wid == wid || !c.noRecent && (s.recent[0] == wid || s.recent[1] == wid)
}

// reaches reports whether the history goes back to the object of the given
// write ID (0: to before there was one), so that a write missing from it did
// not happen (fateLost in s3fence/state.go).
func (c objConfig) reaches(s *objState, wid uint8) bool {
	return s.wid == wid || s.recent[0] == wid || s.recent[1] == wid
}

func (c objConfig) admits(s *objState, i int) guard.Reason {
	return verdict(guard.SameOrNewer, markOf(s.token, s.lease), c.claims[i].token, c.claims[i].lease)
}
