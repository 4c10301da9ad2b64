package s3fence

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"iter"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/fencepost-go/fencepost/guard"
)

// Reader reads what any writer has written to a bucket, in whatever mode. Make one with
// [NewReader]. It needs s3:GetObject and s3:ListBucket only, and is safe for concurrent
// use.
type Reader struct{ b *Bucket }

// NewReader returns a reader of a bucket. It sends nothing, and probes nothing: what is
// read is verified, but a cache in between that keeps objects whatever a reader asks for
// may serve an old one. [Probe], run by somebody who may write, finds such a cache.
//
// Of opts, which may be nil, MaxBody and RequestTimeout count.
//
// Errors: ErrInvalid for a bad bucket name or option.
func NewReader(client S3, bucket string, opts *Options) (*Reader, error) {
	b, err := newBucket(client, bucket, opts)
	if err != nil {
		return nil, err
	}
	return &Reader{b}, nil
}

// Get reads an object, its mark, headers and metadata, as [Objects.Get] or, if it is a
// pointer, as [Pointers.Get] does.
//
// Errors: as [Objects.Get].
func (r *Reader) Get(ctx context.Context, key string) (*Object, error) { return r.any().get(ctx, key) }

// Mark returns the mark of an object, as [Objects.Mark] does.
func (r *Reader) Mark(ctx context.Context, key string) (guard.Mark, error) {
	return r.any().Mark(ctx, key)
}

// List yields the objects whose key begins with prefix, as [Objects.List] does.
func (r *Reader) List(ctx context.Context, prefix string) iter.Seq2[Entry, error] {
	return r.any().List(ctx, prefix)
}

func (r *Reader) any() *fenced { return &fenced{b: r.b, kind: kindAbsent} }

// Object is an object as read.
type Object struct {
	Key  string
	Mark guard.Mark
	// Body is the content: without trailer, and unpacked. It must be closed. From
	// [Objects.Get] it is in memory and has been verified. That of a pointer
	// comes from the store while it is read, and its last Read returns an error in
	// place of io.EOF if it is not what was written.
	Body io.ReadCloser
	// Size is the length of Body.
	Size int64
	// ETag is that of the stored object, or of the pointer. LastModified
	// is when it was last written or raised, by the store's clock.
	ETag         string
	LastModified time.Time
	// DataKey is the key of the data of a pointer, "" otherwise. Its content
	// never changes, and it stays for Options.GracePeriod after the pointer has
	// left it, so a presigned GET of it may be valid for as long.
	DataKey string
	Headers Headers // as stored
}

// readable returns an error if o must not read an object of this version.
func (o *fenced) readable(c *change, v *version) error {
	if o.kind == kindAbsent && v.kind != kindUnfenced { // a Reader
		return nil
	}
	return o.sameMode(c.claim, c.key, v)
}

// Mark returns the mark of an object without reading its body, the zero Mark if
// there never was one. A deleted object has a mark.
//
// Errors: ErrInvalid, ErrUnfenced, ErrUnavailable, ErrSetup (also for a [*DamagedError]).
func (o *fenced) Mark(ctx context.Context, key string) (guard.Mark, error) {
	v, _, err := o.see(ctx, "read mark of", key, false)
	return v.mark, err
}

// see reads an object that o may read.
func (o *fenced) see(ctx context.Context, verb, key string, whole bool) (v version, c *change, err error) {
	if c, err = o.keyed(verb, key); err != nil {
		return v, c, err
	}
	if err = c.ended(ctx); err != nil {
		return v, c, err
	}
	if v, err = o.b.read(ctx, key, whole); err != nil {
		return version{}, c, c.unavailable(err)
	}
	if err = o.readable(c, &v); err != nil {
		return version{}, c, err
	}
	return v, c, nil
}

// maxFollows bounds how often a reader follows a pointer that moves during the
// read.
const maxFollows = 16

// get reads an object whole.
func (o *fenced) get(ctx context.Context, key string) (*Object, error) {
	last := ""
	for range maxFollows {
		v, c, err := o.see(ctx, "get", key, o.kind != kindPointer)
		switch {
		case err != nil:
			return nil, err
		case v.gone():
			return nil, notFound(c, &v)
		case v.kind != kindPointer:
			return o.b.unwrap(c, &v)
		}
		p, out := v.pointer(), v.object(key)
		data, err := o.b.open(ctx, p.Data)
		switch {
		case err == nil:
			out.Headers, out.DataKey, out.Size = data.headers, p.Data, p.Length
			out.Body = &verifier{ReadCloser: data.body, key: key, left: p.Length, want: p.CRC}
			return out, nil
		case !errors.Is(err, errAbsent):
			return nil, c.unavailable(err)
		case v.etag == last: // and the pointer has not moved
			return nil, c.unavailable(damaged(key, "its data "+quoteShort(p.Data)+" is gone"))
		}
		last = v.etag
	}
	c := &change{verb: "get", key: key}
	return nil, c.unavailable(errors.New("the object was changed while it was read; try again"))
}

// object is what a reader sees of v before its content.
func (v *version) object(key string) *Object {
	return &Object{Key: key, Mark: v.mark, ETag: v.etag, LastModified: v.modified}
}

// unwrap makes an object whose content is in v.
func (b *Bucket) unwrap(c *change, v *version) (*Object, error) {
	out, body := v.object(c.key), v.body
	if v.kind == kindGzip {
		if v.content > b.opts.MaxBody {
			return nil, tooLong(v.content, b.opts.MaxBody)
		}
		var err error
		if body, err = unpack(body, v.content); err != nil || int64(len(body)) != v.content {
			return nil, c.unavailable(damaged(c.key, "its body does not unpack to the "+strconv.FormatInt(v.content, 10)+" bytes in its trailer"))
		}
	}
	out.Headers, out.Body, out.Size = *v.headers, io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return out, nil
}

// notFound is the refusal of an object that is not there.
func notFound(c *change, v *version) error {
	what := " does not exist"
	if v.kind == kindTombstone {
		what = " was deleted, or has only been raised"
	}
	return &guard.RejectedError{Reason: guard.ReasonNotFound, Claim: c.claim, Mark: v.mark, Cause: errors.New("object " + strconv.QuoteToASCII(c.key) + what)}
}

// verifier compares data, while it is read, with what the pointer says.
type verifier struct {
	io.ReadCloser
	key  string
	left int64
	crc  uint32
	want string
}

func (v *verifier) Read(buf []byte) (int, error) {
	n, err := v.ReadCloser.Read(buf)
	v.crc = crc32.Update(v.crc, castagnoli, buf[:n])
	v.left -= int64(n)
	switch {
	case v.left < 0:
		err = damaged(v.key, "its data is longer than its pointer says")
	case err == io.EOF && v.left > 0:
		err = damaged(v.key, "its data is shorter than its pointer says")
	case err == io.EOF && fmt.Sprintf("%08x", v.crc) != v.want:
		err = damaged(v.key, "its data does not match the checksum in its pointer")
	}
	return n, err
}

// Entry is an object in a listing.
type Entry struct {
	Key string
	// StoredSize is the length of what is stored, with a trailer; that of a
	// pointer is the pointer's own.
	StoredSize   int64
	ETag         string
	LastModified time.Time
}

// List yields the objects whose key begins with prefix, in the order in which the store
// lists them (of their keys, but not in a directory bucket, where prefix must end in a
// slash), without tombstones and this package's internal objects. Objects that are not fenced
// are listed. It takes one request per 1,000 objects, and one for each object that is as
// long as a tombstone.
//
// An entry of that length whose object the store does not let be read, or that is
// damaged, comes with an error that names its key, and the listing goes on if the
// loop does. It ends with an entry without a key if the store cannot be asked any
// more. A response that is not a listing of this bucket is an error.
//
// It is not a snapshot: concurrent changes may or may not be seen.
//
// Errors, as the last pair: ErrUnavailable and ErrSetup, and ErrInvalid for a prefix that
// no key has, before anything is sent.
func (o *fenced) List(ctx context.Context, prefix string) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		c := &change{verb: "list", key: prefix}
		for e, err := range o.b.listed(ctx, prefix) {
			hidden, unread := false, e.err
			if err == nil && unread == nil {
				hidden, err = o.hidden(ctx, &e.Entry)
				if ofOneObject(err) {
					unread, err = err, nil
				}
			}
			if err != nil {
				yield(Entry{}, c.unavailable(err))
				return
			}
			if unread != nil {
				unread = (&change{verb: "list", key: e.Key}).unavailable(unread)
			}
			if !hidden && !yield(e.Entry, unread) {
				return
			}
		}
	}
}

// hidden reports whether e is not listed: internal objects and tombstones.
func (o *fenced) hidden(ctx context.Context, e *Entry) (bool, error) {
	if internal(e.Key) {
		return true, nil
	}
	if e.StoredSize != tombstoneSize {
		return false, nil
	}
	v, err := o.b.read(ctx, e.Key, false)
	return err == nil && v.gone(), err
}

// listed yields the objects whose key begins with prefix. An error ends it.
func (b *Bucket) listed(ctx context.Context, prefix string) iter.Seq2[entry, error] {
	return func(yield func(entry, error) bool) {
		if err := b.validPrefix(prefix); err != nil {
			yield(entry{}, err)
			return
		}
		given := map[string]bool{} // a token that returns would let the listing go round
		for token := ""; ; {
			p, err := b.list(ctx, prefix, token)
			if err == nil && p.next != "" && given[p.next] {
				err = &failure{err: errors.New("the store truncated the listing without a new continuation token")}
			}
			if err != nil {
				yield(entry{}, err)
				return
			}
			for _, e := range p.entries {
				if !yield(e, nil) {
					return
				}
			}
			if token = p.next; token == "" {
				return
			}
			given[token] = true
		}
	}
}

func (b *Bucket) validPrefix(prefix string) error {
	switch {
	case len(prefix) > maxKey || !utf8.ValidString(prefix):
		return guard.Invalid("prefix", prefix, "must be UTF-8 of at most "+strconv.Itoa(maxKey)+" bytes")
	case strings.HasSuffix(b.name, "--x-s3") && prefix != "" && !strings.HasSuffix(prefix, "/"):
		return guard.Invalid("prefix", prefix, "must end in a slash: a directory bucket lists only whole folders")
	}
	return nil
}

// ofOneObject reports whether err is about one object only, so that a listing can go
// on behind it: the object is damaged, or the store refuses to read or delete it.
func ofOneObject(err error) bool {
	f, ok := errors.AsType[*failure](err)
	return errors.As(err, new(*DamagedError)) || ok && f.oneObject()
}
