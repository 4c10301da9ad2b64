package s3fence

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/md5"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"iter"
	"net/http"
	"time"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/fencepost-go/fencepost/guard"
)

// Object is an object as read.
type Object struct {
	Key  string
	Mark guard.Mark
	// Body is the content: without trailer, and unpacked. It must be closed. From
	// [Objects.Get] it is in memory and has been verified. Of a pointer, and from
	// GetStream, it comes from the store while it is read, and its last Read
	// returns an error in place of io.EOF if it is not what was written.
	Body io.ReadCloser
	// Size is the length of Body.
	Size int64
	// ETag is that of the stored object, or of the pointer. LastModified
	// is when it was last written or raised, by the store's clock.
	ETag         string
	LastModified time.Time
	// DataKey is the key of the data of a pointer, "" otherwise. Its content
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

// byteRange is the range of the first bytes; nil for none, which cannot be
// requested.
func byteRange(length int64) *string {
	if length == 0 {
		return nil
	}
	return aws.String(fmt.Sprintf("bytes=0-%d", length-1))
}

func checkRange(out *s3.GetObjectOutput, length, size int64) error {
	want := fmt.Sprintf("bytes 0-%d/%d", length-1, size)
	if got := aws.ToString(out.ContentRange); got != want {
		return fmt.Errorf("the store answered with the range %s to a request for %q", quoteShort(got), want)
	}
	return nil
}

// GetStream is [Objects.Get] for bodies of any length that are not to be held in
// memory. It takes two requests: the mark, then the body on condition that it is
// still the same object. The body comes from the store while it is read. What was
// read is verified only at the end: the last Read returns an error in place of
// io.EOF if the bytes are not what was written: a [*DamagedError] or, if the
// object was overwritten while it was read, ErrUnavailable. So act on nothing
// before io.EOF.
// Errors: as Get.
func (o *Objects) GetStream(ctx context.Context, key string) (*Object, error) {
	return o.stream(ctx, key)
}

func (o *fenced) stream(ctx context.Context, key string) (*Object, error) {
	last := ""
	for range maxFollows {
		out, s, err := o.found(ctx, "get", key, false)
		if err != nil {
			return nil, err
		}
		open, err := o.b.open(ctx, out, &s)
		if err == nil && !open && s.kind == kindPointer && s.etag == last {
			err = damaged(key, "its data "+quoteShort(s.pointer().Data)+" is gone") // and the pointer has not moved
		}
		if err != nil {
			return nil, o.b.unread(reading("get", key), err)
		}
		if open {
			return out, nil
		}
		last = s.etag
	}
	return nil, guard.Unavailable(opName("get", key), guard.Claim{}, errChanged)
}

// found reads what an object is, and what is known before its body; with whole it
// reads the body too.
func (o *fenced) found(ctx context.Context, verb, key string, whole bool) (*Object, state, error) {
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

func (s *state) where(key string) content {
	at := content{key: key, etag: s.etag, length: s.length, stored: s.size, subject: "body", by: "trailer", sum: crc32.New(castagnoli)}
	switch s.kind {
	case kindPointer:
		p := s.pointer()
		at = content{key: p.Data, length: p.Length, stored: p.Length, subject: "data", by: "pointer", sum: at.sum}
		at.want, _ = p.sum() // reading the pointer has checked it
	case kindPlain:
		at.by, at.sum, at.want = "metadata", md5.New(), s.md5[:]
	default:
		at.want = binary.BigEndian.AppendUint32(nil, s.crc)
	}
	return at
}

// open opens the body of an object in state s. It reports false if the object is no
// longer in that state.
func (b *Bucket) open(ctx context.Context, out *Object, s *state) (bool, error) {
	at := s.where(out.Key)
	in := b.get(at.key, 0)
	in.IfMatch = str(at.etag)
	ranged := at.length < at.stored
	if ranged {
		in.Range = byteRange(at.length)
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
		err = checkRange(got, at.length, at.stored)
	}
	if err != nil {
		got.Body.Close()
		return false, err
	}
	if ranged && at.length == 0 { // of what was sent, nothing is wanted
		got.Body.Close()
		got.Body = io.NopCloser(bytes.NewReader(nil))
	}
	out.Headers = h.headers
	out.Headers.Metadata = userMetadata(h.metadata)
	v := &verifier{ReadCloser: got.Body, key: out.Key, subject: at.subject, by: at.by, left: at.length, sum: at.sum, want: at.want}
	if at.etag != "" {
		v.changed = func() bool {
			now, err := b.peek(ctx, at.key)
			return err != nil || now.etag != at.etag
		}
	}
	out.Size, out.Body = at.length, v
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
	// changed reports whether the object is another by now, so that what was read
	// may be parts of both; nil if it cannot be.
	changed func() bool
}

func (v *verifier) Read(buf []byte) (int, error) {
	n, err := v.ReadCloser.Read(buf)
	if v.sum != nil {
		v.sum.Write(buf[:n])
	}
	v.left -= int64(n)
	problem := ""
	switch {
	case v.left < 0:
		problem = "is longer than its " + v.by + " says"
	case errors.Is(err, io.EOF) && v.left > 0:
		problem = "is shorter than its " + v.by + " says"
	case errors.Is(err, io.EOF) && v.sum != nil && !bytes.Equal(v.sum.Sum(nil), v.want):
		problem = "does not match the checksum in its " + v.by
	default:
		return n, err
	}
	if v.changed != nil && v.changed() {
		return n, guard.Unavailable(opName("read", v.key), guard.Claim{}, errChanged)
	}
	return n, damaged(v.key, "its "+v.subject+" "+problem)
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
	// StoredSize is the length of what is stored, with a trailer; that of a
	// pointer is the pointer's own.
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
	// and lists tombstones, too.
	Marks bool
}

var errStop = errors.New("stop")

// List yields the objects in the order of their keys, without tombstones and this
// package's internal objects. Objects that are not fenced are listed. It takes
// one request per 1,000 objects, and one for each object that is as long as a
// tombstone. opts may be nil.
//
// An entry whose object the store does not let be read, or whose mark cannot be,
// comes with an error that names its key (ErrUnfenced; ErrUnavailable, also for a
// [*DamagedError]), and the listing goes on if the loop does. It ends with an
// entry without a key if the store cannot be asked any more.
//
// It is no snapshot: concurrent changes may or may not be seen.
// Errors, as the last pair: ErrInvalid, ErrUnavailable.
func (o *fenced) List(ctx context.Context, opts *ListOptions) iter.Seq2[Entry, error] {
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
			switch {
			case hidden:
				return nil
			case skippable(err):
				err = guard.Unavailable(opName("list", e.Key), guard.Claim{}, o.b.explain(err))
			case err != nil && !errors.Is(err, guard.ErrUnfenced):
				return err
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
func (o *fenced) hidden(ctx context.Context, e *Entry, marks bool) (bool, error) {
	if internal(e.Key) {
		return true, nil
	}
	if !marks && e.StoredSize != tombstoneSize {
		return false, nil
	}
	s, err := o.b.peek(ctx, e.Key)
	switch {
	case err != nil:
		return false, err
	case !marks || s.kind == kindAbsent:
		return s.kind == kindAbsent || s.kind == kindTombstone, nil
	case s.kind == kindUnfenced:
		return false, unfenced(guard.Claim{Resource: e.Key})
	}
	e.Mark, e.Deleted, e.ETag = s.mark, s.kind == kindTombstone, s.etag
	return false, nil
}
