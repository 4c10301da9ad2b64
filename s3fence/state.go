package s3fence

import (
	"crypto/md5"
	"slices"
	"strings"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// kind is what an object is. The numbers from kindSealed on are stored.
type kind uint8

const (
	kindAbsent    kind = 0
	kindUnfenced  kind = 1 // an object that this package did not write
	kindPlain     kind = 2 // a body as it came; the mark is in the metadata alone
	kindSealed    kind = 3 // a body and a trailer
	kindPointer   kind = 4 // names the data, sealed
	kindTombstone kind = 5 // a mark with no object, sealed
	kindMark      kind = 6 // a mark of Store, sealed
	kindBlank     kind = 7 // the place of a mark of Store that asserts nothing, sealed
	kindFloor     kind = 8 // the floor of Store, sealed
	kindGzip      kind = 9 // a body as a gzip file, sealed by its last member
)

// kindNames are the values of the metadata field fencing-mode.
var kindNames = map[kind]string{
	kindPlain: "plain", kindSealed: "sealed", kindPointer: "pointer", kindTombstone: "tombstone",
	kindMark: "mark", kindBlank: "blank", kindFloor: "floor",
	kindGzip: "gzip",
}

func (k kind) sealed() bool { return k >= kindSealed && k <= kindGzip }

// state is what is known of an object at one ETag.
type state struct {
	kind kind
	etag string // "" if absent
	mark guard.Mark
	id   writeID // of the write that made it
	// recent are the writes before it, newest first; cut says that there were
	// more, or some that are not known.
	recent []writeID
	cut    bool

	md5 [md5.Size]byte // of the body of a Plain object

	size     int64     // as stored
	modified time.Time // it has been so since this time or later
	// length and crc are those of the stored body, without trailer; crc is
	// known for sealed kinds that were read.
	length int64
	crc    uint32
	// body is the body without trailer if it was read too, else nil.
	body []byte
	// content is the unpacked length of a body of kind gzip, in bytes.
	content int64
	// headers are set if the object was read whole.
	headers *Headers
}

func (s *state) fenced() bool { return s.kind >= kindPlain }

// follow returns the state after a write over s; its ETag is known later.
func (s *state) follow(k kind, claim guard.Claim, id writeID) state {
	next := state{kind: k, mark: guard.Mark{Token: claim.Token, LeaseID: claim.LeaseID}, id: id}
	if s.kind == kindUnfenced {
		next.cut = true // the writes that made the earlier content are unknown
	}
	if s.fenced() {
		limit := maxRecent
		if k == kindPlain {
			limit = maxRecentPlain
		}
		next.recent = append(make([]writeID, 0, limit), s.id)
		next.recent = append(next.recent, s.recent[:min(len(s.recent), limit-1)]...)
		next.cut = s.cut || len(s.recent) > limit-1
	}
	return next
}

// made reports whether the write id made s or one of the states before it.
func (s *state) made(id writeID) bool {
	return s.fenced() && (s.id == id || slices.Contains(s.recent, id))
}

// fate is what became of a write that may have been applied.
type fate uint8

const (
	// fateApplied: it took effect; others may have written since.
	fateApplied fate = iota
	// fatePending: it took no effect so far and may still be in flight.
	fatePending
	// fateLost: it took no effect and never will.
	fateLost
	// fateUnknown: it can no longer be determined.
	fateUnknown
)

// fateOf returns the fate of the write id, conditional on base, given the
// object's current state.
//
// An ETag that was replaced never returns, because the bytes or the ETag of
// every write are new. So a write whose base is gone cannot take effect any
// more, and if the list of writes reaches back to the base without naming it,
// it never did.
func fateOf(id writeID, base, now *state) fate {
	switch {
	case now.made(id):
		return fateApplied
	case now.etag == base.etag: // "" for two that are absent
		return fatePending
	case base.fenced() && now.made(base.id):
		return fateLost
	case base.kind == kindAbsent && now.fenced() && !now.cut:
		return fateLost
	}
	return fateUnknown
}

// cached returns a remembered state.
func (b *Bucket) cached(key string) (state, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s, ok := b.cache[key]
	return s, ok
}

// remember keeps a state for the next write. A remembered state is only ever a
// guess: a conditional write checks it.
func (b *Bucket) remember(key string, s state) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.opts.CacheSize < 0 || !strongETag(s.etag) || !s.fenced() {
		delete(b.cache, key)
		return
	}
	if s.kind != kindPointer && s.kind != kindTombstone {
		s.body = nil
	}
	s.headers = nil
	if _, ok := b.cache[key]; !ok && len(b.cache) >= b.opts.CacheSize {
		for other := range b.cache { // any: a map's order is random enough
			delete(b.cache, other)
			break
		}
	}
	b.cache[strings.Clone(key)] = s
}

func (b *Bucket) forget(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.cache, key)
}
