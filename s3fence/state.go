package s3fence

import (
	"bytes"
	"context"
	"crypto/md5"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

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

	modified time.Time // it has been so since this time or later
	// body is the body without trailer if it was read too, else nil.
	body []byte
	// content is the unpacked length of a body of kind gzip, in bytes.
	content int64
	// headers are set if the object was read whole.
	headers *Headers
}

func (s *state) fenced() bool { return s.kind >= kindPlain }

// gone reports whether there is no object, with or without a mark.
func (s *state) gone() bool { return s.kind == kindAbsent || s.kind == kindTombstone }

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

// look reads the state of an object: its headers with its last bytes, or all of it if
// last is 0. It reads once more what seems damaged: some stores respond to a read during a
// write with parts of two versions; real damage stays. The error is the SDK's, a
// [*DamagedError], or says what the store responded.
func (b *Bucket) look(ctx context.Context, key string, last int) (state, error) {
	ctx, cancel := context.WithTimeout(ctx, b.opts.RequestTimeout)
	defer cancel()
	s, err := b.lookOnce(ctx, key, last)
	if errors.As(err, new(*DamagedError)) {
		return b.lookOnce(ctx, key, last)
	}
	return s, err
}

func (b *Bucket) lookOnce(ctx context.Context, key string, last int) (state, error) {
	limit := b.opts.MaxBody + b.opts.MaxBody/1000 + tailSize // what does not compress grows a little
	content, h, err := b.grab(ctx, key, last, limit)
	if last > 0 && httpStatus(err) == http.StatusRequestedRangeNotSatisfiable {
		// The object is empty, or a gateway refuses a range longer than the object.
		content, h, err = b.grab(ctx, key, 0, limit)
	}
	if missing(err) {
		return state{}, nil
	}
	if err != nil {
		return state{}, err
	}
	s, err := parse(key, h, content)
	if err != nil || last > 0 {
		return s, err
	}
	if !s.kind.sealed() {
		s.body = content
	}
	s.headers = &h.headers
	return s, nil
}

// grab sends one GET of the last bytes of an object, or of all of it if last is 0 or
// the store ignores ranges, and returns what came and what the headers say.
func (b *Bucket) grab(ctx context.Context, key string, last int, limit int64) ([]byte, head, error) {
	out, err := b.client.GetObject(ctx, b.get(key, last))
	if err != nil {
		return nil, head{}, err
	}
	defer out.Body.Close()
	h, err := headOf(out)
	if err != nil {
		return nil, h, err
	}
	switch r := aws.ToString(out.ContentRange); {
	case r != "" && last == 0:
		return nil, h, fmt.Errorf("the store responded to a request for a whole object with the range %s", quoteShort(r))
	case r != "":
		tail, err := rangedTail(out.Body, &h, r)
		return tail, h, err
	}
	if h.size > limit {
		return nil, h, tooLong(h.size, b.opts.MaxBody)
	}
	object, err := readAll(out.Body, h.size, limit)
	size := int64(len(object))
	switch {
	case err != nil:
		return nil, h, err
	case size > limit:
		return nil, h, tooLong(size, b.opts.MaxBody)
	case out.ContentLength != nil && *out.ContentLength != size:
		return nil, h, fmt.Errorf("the store announced %d bytes and sent %d", *out.ContentLength, size)
	}
	h.size = size
	return object, h, nil
}

// rangedTail reads the last bytes of an object and completes its size.
func rangedTail(body io.Reader, h *head, contentRange string) ([]byte, error) {
	var from, to, size int64
	// For an empty object MinIO responds with the range "bytes 0--1/0".
	if n, err := fmt.Sscanf(contentRange, "bytes %d-%d/%d", &from, &to, &size); n != 3 || err != nil ||
		size < 0 || to != size-1 || from != max(0, size-tailSize) {
		return nil, fmt.Errorf("the store responded to a request for the last %d bytes with the range %s", tailSize, quoteShort(contentRange))
	}
	h.size = size
	tail, err := readAll(body, tailSize, tailSize)
	if err != nil {
		return nil, err
	}
	if want := min(size, tailSize); int64(len(tail)) != want {
		return nil, fmt.Errorf("the store responded to a request for the last %d bytes with %d", want, len(tail))
	}
	return tail, nil
}

// readAll reads at most one byte more than the limit. size is how many are expected.
func readAll(from io.Reader, size, limit int64) ([]byte, error) {
	out := bytes.NewBuffer(make([]byte, 0, max(size, 0)+bytes.MinRead)) // room to detect the end
	if _, err := out.ReadFrom(io.LimitReader(from, limit+1)); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// head is what a response's headers say about an object.
type head struct {
	etag     string
	size     int64 // of the whole object, as stored
	modified time.Time
	headers  Headers
	fencing  map[string]string // the reserved metadata
}

// parse makes a state from an object's headers and its last bytes, or its whole
// body if that is short. The error is a [*DamagedError].
func parse(key string, h head, tail []byte) (state, error) {
	s, err := parseKind(key, h, tail)
	s.etag, s.modified = h.etag, h.modified
	return s, err
}

func parseKind(key string, h head, tail []byte) (state, error) {
	mode := h.fencing[metaMode]
	switch {
	case mode == "" && len(h.fencing) > 0:
		return state{}, damaged(key, "its metadata has fencing fields but no "+metaMode+": another program wrote it")
	case mode == "" && sealedBytes(tail):
		return state{}, damaged(key, "its trailer is there and its metadata is gone: the bytes were copied here")
	case mode == "":
		return state{kind: kindUnfenced}, nil
	case mode == kindNames[kindPlain]:
		return parsePlain(key, h, tail)
	}
	sl, err := parseSeal(key, tail, h.size)
	if err != nil {
		return state{}, err
	}
	s := sl.state
	if problem := disagreement(&s, h.fencing); problem != "" {
		return state{}, damaged(key, problem)
	}
	if int64(len(tail)) == h.size {
		s.body = tail[:len(tail)-sl.size()]
		if crc32.Checksum(s.body, castagnoli) != sl.crc {
			return state{}, damaged(key, "its body does not match the checksum in its trailer")
		}
	}
	if s.kind == kindPointer && !s.pointer().complete() {
		return state{}, damaged(key, "its pointer cannot be read: another version wrote it")
	}
	return s, nil
}

// disagreement compares the trailer with the metadata that repeats it.
func disagreement(s *state, m map[string]string) string {
	want := s.metadata(nil)
	for _, name := range []string{metaMode, metaToken, metaLease, metaWrite} {
		if m[name] != want[name] {
			return "its trailer and its metadata disagree about " + strings.TrimPrefix(name, metaPrefix) + ": " +
				quoteShort(want[name]) + " and " + quoteShort(m[name])
		}
	}
	return ""
}

// etagError is a response without an ETag that a write can be conditional on.
type etagError struct{ problem string }

func (e *etagError) Error() string { return e.problem }

// headOf reads the headers of a response to GET. Without a strong ETag the
// response gives a write or deletion nothing to be conditional on.
func headOf(out *s3.GetObjectOutput) (head, error) {
	switch etag := aws.ToString(out.ETag); {
	case strings.HasPrefix(etag, "W/"):
		return head{}, &etagError{"the response has the weak ETag " + quoteShort(etag) + ": something between this program and the store has transformed it"}
	case !strongETag(etag):
		return head{}, &etagError{"the store responded with the ETag " + quoteShort(etag) + ", on which no write can be conditional"}
	}
	h := head{
		etag: aws.ToString(out.ETag), size: aws.ToInt64(out.ContentLength),
		modified: aws.ToTime(out.LastModified),
		headers: Headers{
			ContentType: aws.ToString(out.ContentType), CacheControl: aws.ToString(out.CacheControl),
			ContentDisposition: aws.ToString(out.ContentDisposition), ContentLanguage: aws.ToString(out.ContentLanguage),
			StorageClass: out.StorageClass,
		},
	}
	h.headers.Metadata, h.fencing = split(out.Metadata)
	// Some gateways store the SDK's framing of a body with a trailing checksum
	// as if it were the caller's encoding.
	var encodings []string
	for e := range strings.SplitSeq(aws.ToString(out.ContentEncoding), ",") {
		if e = strings.TrimSpace(e); e != "" && e != "aws-chunked" {
			encodings = append(encodings, e)
		}
	}
	h.headers.ContentEncoding = strings.Join(encodings, ",")
	if t, err := http.ParseTime(aws.ToString(out.ExpiresString)); err == nil {
		h.headers.Expires = t
	}
	return h, nil
}
