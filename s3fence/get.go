package s3fence

import (
	"bytes"
	"context"
	"errors"
	"hash/crc32"
	"io"
	"strconv"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// Object is an object as it was read.
type Object struct {
	Key  string
	Mark guard.Mark
	// Body is the body without trailer. It must be closed. Of Sealed and Plain
	// objects it is in memory and has been verified; that of a Pointer comes
	// from the store while it is read, and its last Read returns a
	// [*DamagedError] in place of io.EOF if it is not what was written.
	Body io.ReadCloser
	// Size is the length of Body.
	Size int64
	// ETag is that of the stored object, the pointer's for Pointer. LastModified
	// is when it was written or raised last, by the store's clock.
	ETag         string
	LastModified time.Time
	// DataKey is the key of the data of a Pointer, "" otherwise. What it holds
	// never changes; it is deleted some time after the pointer has left it.
	DataKey string
	Headers Headers
}

// maxFollows bounds how often a reader follows a pointer that moves away while
// it looks.
const maxFollows = 16

// Get reads an object, its mark, headers and metadata. What it returns is never
// older than the last write that was acknowledged before the call.
//
// Errors: ErrNotFound, also for what was deleted (the [*guard.RejectedError]
// has the tombstone's mark), ErrUnfenced, ErrInvalid, ErrUnavailable (also for
// a [*DamagedError]).
func (o *Objects) Get(ctx context.Context, key string) (*Object, error) {
	if err := validateKey("key", key, maxKey); err != nil {
		return nil, err
	}
	c := &change{verb: "get", given: true, claim: guard.Claim{Resource: key}, key: key, whole: true}
	last := ""
	for range maxFollows {
		if err := ended(ctx, c.op(), guard.Claim{}); err != nil {
			return nil, err
		}
		s, err := o.b.read(ctx, c)
		if err != nil {
			return nil, o.b.unread(c, err)
		}
		if err := o.writable(c.claim, key, &s); err != nil {
			return nil, err
		}
		if s.kind == kindAbsent || s.kind == kindTombstone {
			return nil, &guard.RejectedError{Reason: guard.ReasonNotFound, Claim: c.claim, Mark: s.mark}
		}
		out := &Object{Key: key, Mark: s.mark, ETag: s.etag, LastModified: s.modified, Headers: *s.headers}
		if s.kind == kindGzip {
			if s.content > o.b.opts.MaxBody {
				return nil, tooLong(s.content, o.b.opts.MaxBody)
			}
			if s.body, err = unpack(key, bytes.NewReader(s.body), s.content); err != nil {
				return nil, guard.Unavailable(c.op(), guard.Claim{}, err)
			}
		}
		if s.kind != kindPointer {
			out.Body, out.Size = io.NopCloser(bytes.NewReader(s.body)), int64(len(s.body))
			return out, nil
		}
		found, err := o.b.openData(ctx, out, s.pointer())
		switch {
		case err != nil:
			return nil, guard.Unavailable(c.op(), guard.Claim{}, o.b.explain(err))
		case found:
			return out, nil
		case s.etag == last: // the pointer has stood still, and the data is not there
			return nil, guard.Unavailable(c.op(), guard.Claim{}, damaged(key, "its data "+quoteShort(s.pointer().Data)+" is gone"))
		}
		last = s.etag
	}
	return nil, guard.Unavailable(c.op(), guard.Claim{}, errChanged)
}

// openData opens what a pointer points to; false if it is not there.
func (b *Bucket) openData(ctx context.Context, out *Object, p pointer) (bool, error) {
	data, err := b.client.GetObject(ctx, b.get(p.Data, 0))
	if err != nil {
		if missing(err) {
			return false, nil
		}
		return false, err
	}
	sum, err := strconv.ParseUint(p.CRC, 16, 32)
	if err != nil {
		data.Body.Close()
		return false, damaged(out.Key, "its pointer has the checksum "+quoteShort(p.CRC))
	}
	h, err := headOf(data)
	if err != nil {
		data.Body.Close()
		return false, err
	}
	out.Headers = h.headers
	out.Headers.Metadata = userMetadata(h.metadata)
	out.Size, out.DataKey = p.Length, p.Data
	out.Body = &verifier{ReadCloser: data.Body, key: out.Key, left: p.Length, want: uint32(sum)}
	return true, nil
}

// verifier compares what is read with what the pointer says.
type verifier struct {
	io.ReadCloser
	key  string
	left int64
	crc  uint32
	want uint32
}

func (v *verifier) Read(buf []byte) (int, error) {
	n, err := v.ReadCloser.Read(buf)
	v.crc = crc32.Update(v.crc, castagnoli, buf[:n])
	v.left -= int64(n)
	switch {
	case v.left < 0:
		return n, damaged(v.key, "its data is longer than its pointer says")
	case errors.Is(err, io.EOF) && v.left > 0:
		return n, damaged(v.key, "its data is shorter than its pointer says")
	case errors.Is(err, io.EOF) && v.crc != v.want:
		return n, damaged(v.key, "its data does not match the checksum in its pointer")
	}
	return n, err
}

// Unseal verifies the bytes of a [Sealed] or [SealedGzip] object as they are
// stored under key and returns the body and the mark, for readers that fetch
// objects by other means. The body of a Sealed one is not copied, that of
// a SealedGzip one is unpacked to the length that its trailer says.
//
// The error is a [*DamagedError], a [*guard.RejectedError] (ErrNotFound) for a
// tombstone, or ErrInvalid for another of this package's objects.
func Unseal(key string, object []byte) ([]byte, guard.Mark, error) {
	s, err := parseSeal(key, object, int64(len(object)))
	if err != nil {
		return nil, guard.Mark{}, err
	}
	body := object[: len(object)-s.size() : len(object)-s.size()]
	if err := s.checkBody(key, body); err != nil {
		return nil, guard.Mark{}, err
	}
	mark := guard.Mark{Token: s.token, LeaseID: s.lease}
	switch s.kind {
	case kindSealed:
		return body, mark, nil
	case kindGzip:
		if body, err = unpack(key, bytes.NewReader(body), int64(s.content)); err != nil {
			return nil, guard.Mark{}, err
		}
		return body, mark, nil
	case kindTombstone:
		return nil, mark, &guard.RejectedError{Reason: guard.ReasonNotFound, Claim: guard.Claim{Resource: key}, Mark: mark}
	}
	return nil, guard.Mark{}, guard.Invalid("object", kindNames[s.kind], "is not a sealed object")
}
