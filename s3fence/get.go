package s3fence

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/md5"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"iter"
	"net/http"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/fencepost-go/fencepost/guard"
)

// Object is an object as read.
type Object struct {
	Key  string
	Mark guard.Mark
	// Body is the content: without trailer, and unpacked. It must be closed. From
	// Get it is in memory and has been verified. For a Pointer, and from
	// GetStream, it comes from the store while it is read, and its last Read
	// returns a [*DamagedError] in place of io.EOF if it is not what was written.
	Body io.ReadCloser
	// Size is the length of Body.
	Size int64
	// ETag is that of the stored object, the pointer's for Pointer. LastModified
	// is when it was last written or raised, by the store's clock.
	ETag         string
	LastModified time.Time
	// DataKey is the key of the data of a Pointer, "" otherwise. Its content
	// never changes; it is deleted some time after the pointer has left it.
	DataKey string
	Headers Headers // as stored
}

// maxFollows bounds how often a reader follows a pointer that moves during the
// read.
const maxFollows = 16

// Get reads an object, its mark, headers and metadata. The result is never older
// than the last write that was acknowledged before the call.
//
// Errors: ErrNotFound, also for a deleted object (the [*guard.RejectedError] has
// the tombstone's mark), ErrUnfenced, ErrInvalid, ErrUnavailable (also for a
// [*DamagedError]).
func (o *Objects) Get(ctx context.Context, key string) (*Object, error) {
	if o.mode == Pointer {
		return o.stream(ctx, "get", key, nil)
	}
	out, s, err := o.found(ctx, "get", key, true)
	if err != nil {
		return nil, err
	}
	if s.kind == kindGzip {
		if s.content > o.b.opts.MaxBody {
			return nil, tooLong(s.content, o.b.opts.MaxBody)
		}
		if s.body, err = unpack(key, bytes.NewReader(s.body), s.content); err != nil {
			return nil, guard.Unavailable(opName("get", key), guard.Claim{}, err)
		}
	}
	out.Headers = *s.headers
	out.Body, out.Size = io.NopCloser(bytes.NewReader(s.body)), int64(len(s.body))
	return out, nil
}

// section is a part of a body; nil is the whole body.
type section struct{ offset, length int64 }

// of returns the start and the length of the section in a body of the given
// length.
func (s *section) of(size int64) (first, length int64, err error) {
	switch {
	case s == nil:
		return 0, size, nil
	case s.offset < 0 || s.offset > size || s.offset == size && size > 0:
		return 0, 0, guard.Invalid("offset", strconv.FormatInt(s.offset, 10), "is not within the body of "+strconv.FormatInt(size, 10)+" bytes")
	case s.length < 0 || s.length > size-s.offset:
		return s.offset, size - s.offset, nil
	}
	return s.offset, s.length, nil
}

// byteRange is nil for an empty range, which cannot be requested.
func byteRange(first, length int64) *string {
	if length == 0 {
		return nil
	}
	return aws.String(fmt.Sprintf("bytes=%d-%d", first, first+length-1))
}

func checkRange(out *s3.GetObjectOutput, first, length, size int64) error {
	want := fmt.Sprintf("bytes %d-%d/%d", first, first+length-1, size)
	if got := aws.ToString(out.ContentRange); got != want {
		return fmt.Errorf("the store answered with the range %s to a request for %q", quoteShort(got), want)
	}
	return nil
}

// GetStream is [Objects.Get] for bodies of any length that are not to be held in
// memory. It takes two requests: the mark, then the body on condition that it is
// still the same object. The body comes from the store while it is read. What was
// read is verified only at the end: the last Read returns a [*DamagedError] in
// place of io.EOF if the bytes are not what was written. So act on nothing before
// io.EOF.
// Errors: as Get.
func (o *Objects) GetStream(ctx context.Context, key string) (*Object, error) {
	return o.stream(ctx, "get", key, nil)
}

// GetRange reads length bytes of the body from offset on, or fewer if it is
// shorter; a negative length reads to its end. It verifies the mark, the length
// of the whole body, and that all comes from one version. It does not verify the
// bytes, because the checksum covers the whole body. It takes two requests.
// [SealedGzip] has no ranges: ErrInvalid.
// Errors: as [Objects.Get].
func (o *Objects) GetRange(ctx context.Context, key string, offset, length int64) (*Object, error) {
	if o.mode == SealedGzip {
		return nil, guard.Invalid("mode", o.mode.String(), "has no ranges: the body is compressed as a whole")
	}
	return o.stream(ctx, "get range of", key, &section{offset, length})
}

func (o *Objects) stream(ctx context.Context, verb, key string, part *section) (*Object, error) {
	last := ""
	for range maxFollows {
		out, s, err := o.found(ctx, verb, key, false)
		if err != nil {
			return nil, err
		}
		open, err := o.b.open(ctx, out, &s, part)
		if err == nil && !open && s.kind == kindPointer && s.etag == last {
			err = damaged(key, "its data "+quoteShort(s.pointer().Data)+" is gone") // and the pointer has not moved
		}
		if err != nil {
			return nil, o.b.unread(reading(verb, key), err)
		}
		if open {
			return out, nil
		}
		last = s.etag
	}
	return nil, guard.Unavailable(opName(verb, key), guard.Claim{}, errChanged)
}

// found reads what an object is, and what is known before its body; with whole it
// reads the body too.
func (o *Objects) found(ctx context.Context, verb, key string, whole bool) (*Object, state, error) {
	s, err := o.look(ctx, verb, key, whole)
	if err != nil {
		return nil, s, err
	}
	if s.kind == kindAbsent || s.kind == kindTombstone {
		return nil, s, &guard.RejectedError{Reason: guard.ReasonNotFound, Claim: guard.Claim{Resource: key}, Mark: s.mark}
	}
	return &Object{Key: key, Mark: s.mark, ETag: s.etag, LastModified: s.modified}, s, nil
}

// content says where the bytes of an object are, and what they must be.
type content struct {
	key, etag      string // etag is "" if nobody else writes the key
	length, stored int64  // of the content, and of what is under the key
	subject, by    string // for errors
	sum            hash.Hash
	want           []byte
}

func (s *state) where(key string) (content, error) {
	at := content{key: key, etag: s.etag, length: s.length, stored: s.size, subject: "body", by: "trailer", sum: crc32.New(castagnoli)}
	switch s.kind {
	case kindPointer:
		p := s.pointer()
		at = content{key: p.Data, length: p.Length, stored: p.Length, subject: "data", by: "pointer", sum: at.sum}
		var err error
		if at.want, err = hex.DecodeString(p.CRC); err != nil || len(at.want) != crc32.Size {
			return at, damaged(key, "its pointer has the checksum "+quoteShort(p.CRC))
		}
	case kindPlain:
		at.by, at.sum, at.want = "metadata", md5.New(), s.md5[:]
	default:
		at.want = binary.BigEndian.AppendUint32(nil, s.crc)
	}
	return at, nil
}

// open opens the body, or a section of it, of an object in state s. It reports
// false if the object is no longer in that state.
func (b *Bucket) open(ctx context.Context, out *Object, s *state, part *section) (bool, error) {
	at, err := s.where(out.Key)
	if err != nil {
		return false, err
	}
	first, length, err := part.of(at.length)
	if err != nil {
		return false, err
	}
	in := b.get(at.key, 0)
	in.IfMatch = str(at.etag)
	ranged := part != nil || at.length < at.stored
	if ranged {
		in.Range = byteRange(first, length)
	}
	got, err := b.client.GetObject(ctx, in)
	if status, _ := httpStatus(err); status == http.StatusPreconditionFailed || missing(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	h, err := headOf(got)
	switch {
	case err != nil:
	case at.etag != "" && h.etag != at.etag:
		err = fmt.Errorf("the store answered with the ETag %s to a request for %s", quoteShort(h.etag), quoteShort(at.etag))
	case in.Range != nil:
		err = checkRange(got, first, length, at.stored)
	}
	if err != nil {
		got.Body.Close()
		return false, err
	}
	if ranged && length == 0 { // of what was sent, nothing is wanted
		got.Body.Close()
		got.Body = io.NopCloser(bytes.NewReader(nil))
	}
	if part != nil {
		at.sum = nil
	}
	out.Headers = h.headers
	out.Headers.Metadata = userMetadata(h.metadata)
	v := &verifier{ReadCloser: got.Body, key: out.Key, subject: at.subject, by: at.by, left: length, sum: at.sum, want: at.want}
	out.Size, out.Body = length, v
	if s.kind == kindPointer {
		out.DataKey = at.key
	}
	if s.kind != kindGzip {
		return true, nil
	}
	r, err := gzip.NewReader(v)
	if err != nil {
		v.Close()
		return false, err
	}
	out.Size = s.content
	out.Body = &verifier{ReadCloser: unpacking{r, v}, key: out.Key, subject: "content", by: "trailer", left: s.content}
	return true, nil
}

// unpacking reads a gzip file and closes what it is read from.
type unpacking struct {
	*gzip.Reader
	from io.Closer
}

func (u unpacking) Close() error { return u.from.Close() }

// verifier compares what is read with what is known of it.
type verifier struct {
	io.ReadCloser
	key, subject, by string
	left             int64
	sum              hash.Hash // nil if nothing is known but the length
	want             []byte
}

func (v *verifier) Read(buf []byte) (int, error) {
	n, err := v.ReadCloser.Read(buf)
	if v.sum != nil {
		v.sum.Write(buf[:n])
	}
	v.left -= int64(n)
	switch {
	case v.left < 0:
		return n, damaged(v.key, "its "+v.subject+" is longer than its "+v.by+" says")
	case errors.Is(err, io.EOF) && v.left > 0:
		return n, damaged(v.key, "its "+v.subject+" is shorter than its "+v.by+" says")
	case errors.Is(err, io.EOF) && v.sum != nil && !bytes.Equal(v.sum.Sum(nil), v.want):
		return n, damaged(v.key, "its "+v.subject+" does not match the checksum in its "+v.by)
	}
	return n, err
}

// Presigner signs requests in advance; [*s3.PresignClient] is one.
type Presigner interface {
	PresignGetObject(context.Context, *s3.GetObjectInput, ...func(*s3.PresignOptions)) (*v4.PresignedHTTPRequest, error)
}

// Presigned is a request that anybody who has it may send.
type Presigned struct {
	URL string
	// Header must be sent with it; it is empty except for a customer's key.
	Header http.Header
	// DataKey is the key that is read. Mark is the pointer's when it was signed.
	DataKey string
	Mark    guard.Mark
}

// PresignGet signs a GET of the bytes that a [Pointer] names now. They are
// immutable, so the reader gets that version whole, or nothing once it was
// collected. The signature holds for valid, one second to Options.GracePeriod,
// which a collector waits after the pointer has moved away.
//
// Errors: ErrInvalid, also in the other modes, whose key shows whatever is there
// by then; otherwise as [Objects.Get].
func (o *Objects) PresignGet(ctx context.Context, by Presigner, key string, valid time.Duration) (*Presigned, error) {
	if err := validateKey("key", key, maxKey); err != nil {
		return nil, err
	}
	switch {
	case by == nil:
		return nil, guard.Missing("presigner")
	case o.mode != Pointer:
		return nil, guard.Invalid("mode", o.mode.String(), "names no immutable data")
	case valid < time.Second || valid > o.b.opts.GracePeriod:
		return nil, guard.Invalid("valid", valid.String(), "must be 1s to Options.GracePeriod, "+o.b.opts.GracePeriod.String())
	}
	out, s, err := o.found(ctx, "presign", key, false)
	if err != nil {
		return nil, err
	}
	data := s.pointer().Data
	signed, err := by.PresignGetObject(ctx, o.b.get(data, 0), s3.WithPresignExpires(valid))
	if err != nil {
		return nil, guard.Unavailable(opName("presign", key), guard.Claim{}, err)
	}
	h := signed.SignedHeader.Clone()
	h.Del("Host")
	return &Presigned{URL: signed.URL, Header: h, DataKey: data, Mark: out.Mark}, nil
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

// Entry is an object in a listing.
type Entry struct {
	Key string
	// StoredSize is the length of what is stored: with the trailer of a Sealed
	// object; that of a Pointer is the pointer's own.
	StoredSize   int64
	ETag         string
	LastModified time.Time
	// Mark is the object's, and Deleted says that it is a tombstone, if
	// ListOptions.Marks asked for it.
	Mark    guard.Mark
	Deleted bool
}

// ListOptions narrows a listing. The zero value lists everything.
type ListOptions struct {
	// Prefix is the prefix of the listed keys.
	Prefix string
	// After skips keys up to this one, to resume an earlier listing.
	After string
	// Marks reads the mark of each object, which takes one request per object,
	// and lists tombstones, too. An object whose mark cannot be read comes with
	// an error (ErrUnfenced, or ErrUnavailable for a [*DamagedError]); the
	// listing goes on if the loop does.
	Marks bool
}

var errStop = errors.New("stop")

// List yields the objects in the order of their keys, without tombstones and this
// package's internal objects. Objects that are not fenced are listed. It takes
// one request per 1,000 objects, and one for each object that is as long as a
// tombstone. opts may be nil.
//
// It is no snapshot: concurrent changes may or may not be seen.
// Errors, as the last pair: ErrInvalid, ErrUnavailable.
func (o *Objects) List(ctx context.Context, opts *ListOptions) iter.Seq2[Entry, error] {
	if opts == nil {
		opts = &ListOptions{}
	}
	given := *opts
	return func(yield func(Entry, error) bool) {
		for _, f := range []struct{ field, value string }{{"ListOptions.Prefix", given.Prefix}, {"ListOptions.After", given.After}} {
			if len(f.value) > maxKey || !utf8.ValidString(f.value) {
				yield(Entry{}, guard.Invalid(f.field, f.value, "must be UTF-8 of at most 1024 bytes"))
				return
			}
		}
		err := o.b.list(ctx, given.Prefix, given.After, func(object types.Object) error {
			e := Entry{
				Key: aws.ToString(object.Key), StoredSize: aws.ToInt64(object.Size),
				ETag: aws.ToString(object.ETag), LastModified: aws.ToTime(object.LastModified),
			}
			hidden, err := o.hidden(ctx, &e, given.Marks)
			if errors.As(err, new(*DamagedError)) {
				err = guard.Unavailable(opName("list", e.Key), guard.Claim{}, err)
			} else if err != nil && !errors.Is(err, guard.ErrUnfenced) {
				return err
			}
			if hidden {
				return nil
			}
			if !yield(e, err) {
				return errStop
			}
			return nil
		})
		if err != nil && !errors.Is(err, errStop) {
			yield(Entry{}, guard.Unavailable(opName("list", given.Prefix), guard.Claim{}, o.b.explain(err)))
		}
	}
}

// hidden reports whether e is not listed: internal objects and tombstones. With
// marks it reads the object and completes the entry.
func (o *Objects) hidden(ctx context.Context, e *Entry, marks bool) (bool, error) {
	if internal(e.Key) {
		return true, nil
	}
	if !marks && e.StoredSize != tombstoneSize {
		return false, nil
	}
	s, err := o.b.peek(ctx, e.Key)
	switch {
	case !marks && errors.As(err, new(*DamagedError)):
		return false, nil // reading it reports what is wrong
	case err != nil:
		return false, err
	case !marks || s.kind == kindAbsent:
		return s.kind == kindAbsent || s.kind == kindTombstone, nil
	case s.kind == kindUnfenced:
		return false, &guard.RejectedError{Reason: guard.ReasonUnfenced, Claim: guard.Claim{Resource: e.Key}}
	}
	e.Mark, e.Deleted, e.ETag = s.mark, s.kind == kindTombstone, s.etag
	return false, nil
}
