package s3fence

import (
	"crypto/md5"
	"hash/crc32"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// kind is what an object is. The numbers from kindSealed on are stored.
type kind uint8

const (
	kindAbsent    kind = 0
	kindUnfenced  kind = 1 // an object that this package did not write
	kindPlain     kind = 2 // a body as it came; the mark is only in the metadata
	kindSealed    kind = 3 // a body and a trailer
	kindPointer   kind = 4 // names the data, sealed
	kindTombstone kind = 5 // a mark with no object, sealed
	kindGzip      kind = 9 // a body as a gzip file, sealed by its last member
)

// kindNames are the values of the metadata field fencing-mode.
var kindNames = map[kind]string{
	kindPlain: "plain", kindSealed: "sealed", kindPointer: "pointer", kindTombstone: "tombstone", kindGzip: "gzip",
}

func (k kind) sealed() bool {
	return k >= kindSealed && k <= kindTombstone || k == kindGzip
}

// version is an object at one ETag: what it says of itself, as FORMAT.md has it.
type version struct {
	kind kind
	etag string // "" if absent
	mark guard.Mark
	id   writeID // of the write that made it
	// recent are the writes before it, newest first; cut says that there were
	// more, or some that are not known.
	recent []writeID
	cut    bool

	md5 [md5.Size]byte // of the body of a Plain object

	// modified is when it was stored, seen when the store responded with it, both by the
	// store's clock: collectors and readers rely on them, so no writer's clock counts.
	// Zero is not known.
	modified, seen time.Time
	// body is the body without trailer if it was read too, else nil.
	body []byte
	// content is the unpacked length of a body of kind gzip, in bytes.
	content int64
	// headers are set if the object was read whole; expires is an Expires that is not a date.
	headers *Headers
	expires string
	// looks describes an object that this package did not write.
	looks string
}

func (v *version) fenced() bool { return v.kind >= kindPlain }

// gone reports whether there is no object, with or without a mark.
func (v *version) gone() bool { return v.kind == kindAbsent || v.kind == kindTombstone }

// over is the condition of a write that replaces v.
func (v *version) over() condition { return condition(v.etag) }

// follow returns the version after a write over v; its ETag is known later.
func (v *version) follow(k kind, claim guard.Claim, id writeID) version {
	next := version{kind: k, mark: guard.Mark{Token: claim.Token, LeaseID: claim.LeaseID}, id: id}
	if v.kind == kindUnfenced {
		next.cut = true // the writes that made the earlier content are unknown
	}
	if v.fenced() {
		limit := maxRecent
		if k == kindPlain {
			limit = maxRecentPlain
		}
		next.recent = append(make([]writeID, 0, limit), v.id)
		next.recent = append(next.recent, v.recent[:min(len(v.recent), limit-1)]...)
		next.cut = v.cut || len(v.recent) > limit-1
	}
	return next
}

// made reports whether the write id made v or one of the versions before it.
func (v *version) made(id writeID) bool {
	return v.fenced() && (v.id == id || slices.Contains(v.recent, id))
}

// update is a version to be stored. Its bytes are the same each time it is sent.
type update struct {
	payload
	next version
}

// sealed makes the write of a body with a trailer. The two are joined in memory.
func (v version) sealed(key string, h Headers, body []byte) *update {
	s := seal{version: v, key: keySum(key), length: uint64(len(body)), crc: crc32.Checksum(body, castagnoli)}
	all := s.append(append(make([]byte, 0, len(body)+s.size()), body...))
	v.body = all[:len(body)]
	return &update{payload{headers: h, metadata: v.metadata(h.Metadata), body: all}, v}
}

// holding makes the write of a caller's body, sealed or plain. For kind gzip body is
// packed, and length is that of the content.
func (v version) holding(key string, h Headers, body []byte, length int64) *update {
	switch v.kind {
	case kindGzip:
		v.content = length
	case kindPlain:
		v.md5 = md5.Sum(body)
		return &update{payload{headers: h, metadata: v.metadata(h.Metadata), body: body}, v}
	}
	return v.sealed(key, h, body)
}

// parse makes a version of an object of which at least the last bytes were read. The error
// is a [*DamagedError].
func parse(key string, o *object) (version, error) {
	v, err := parseKind(key, o)
	v.etag, v.modified, v.seen, v.expires = o.etag, o.modified, o.date, o.expires
	if o.whole() {
		v.headers = &o.headers
		if err == nil && !v.kind.sealed() {
			v.body = o.content
		}
	}
	return v, err
}

func parseKind(key string, o *object) (version, error) {
	switch o.fencing[metaMode] {
	case "":
		_, _, sealed, _ := splitSeal(o.content)
		switch {
		case len(o.fencing) > 0:
			return version{}, damaged(key, "its metadata has fencing fields but no "+metaMode+": another program wrote it")
		case sealed: // by any version, and not just with the bytes that a trailer ends with
			return version{}, damaged(key, "its trailer is there and its metadata is gone: the bytes were copied here")
		}
		return version{kind: kindUnfenced, looks: quoteShort(o.headers.ContentType) + " of " + strconv.FormatInt(o.size, 10) + " bytes"}, nil
	case kindNames[kindPlain]:
		return parsePlain(key, o)
	}
	s, err := parseSeal(key, o.content, o.size)
	if err != nil {
		return version{}, err
	}
	v := s.version
	if problem := disagreement(&v, o.fencing); problem != "" {
		return version{}, damaged(key, problem)
	}
	if o.whole() {
		v.body = o.content[:len(o.content)-s.size()]
		if crc32.Checksum(v.body, castagnoli) != s.crc {
			return version{}, damaged(key, "its body does not match the checksum in its trailer")
		}
	}
	if v.kind == kindPointer && !v.pointer().complete() {
		return version{}, damaged(key, "its pointer cannot be read: another version wrote it")
	}
	return v, nil
}

// disagreement compares the trailer with the metadata that repeats it.
func disagreement(v *version, m map[string]string) string {
	want := v.metadata(nil)
	for _, name := range []string{metaMode, metaToken, metaLease, metaWrite} {
		if m[name] != want[name] {
			return "its trailer and its metadata disagree about " + strings.TrimPrefix(name, metaPrefix) + ": " +
				quoteShort(want[name]) + " and " + quoteShort(m[name])
		}
	}
	return ""
}

// DamagedError says that an object is not as this package wrote it: its trailer is
// missing, cut, altered or another object's, its body does not match, its metadata says
// something else, or its data is gone, in two consecutive reads. It is the cause of a
// [*guard.FailedError] of the reason setup: nothing was written, and nothing will
// be until somebody repairs it.
//
// The ways out are to put the right bytes back, or InsecureDelete.
type DamagedError struct {
	// Key is the object's key.
	Key string
	// Problem says what is wrong with it.
	Problem string
}

// Error names the object and the problem.
func (e *DamagedError) Error() string {
	return "object " + strconv.QuoteToASCII(e.Key) + " is damaged: " + e.Problem
}

// Unwrap returns [guard.ErrSetup].
func (e *DamagedError) Unwrap() error { return guard.ErrSetup }

func damaged(key, problem string) error { return &DamagedError{Key: key, Problem: problem} }
