package s3fence

import (
	"context"
	"io"
	"iter"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/fencepost-go/fencepost/guard"
)

// Object is an object as read.
type Object struct {
	Key  string
	Mark guard.Mark
	// Body is the content: without trailer, and unpacked. It must be closed. From
	// [Objects.Get] it is in memory and has been verified. From [Pointers.Get] it
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

// found reads what an object is, and what is known before its body; with whole it
// reads the body too.
func (o *fenced) found(ctx context.Context, verb, key string, whole bool) (*Object, state, error) {
	s, err := o.look(ctx, verb, key, whole)
	if err != nil {
		return nil, s, err
	}
	if s.gone() {
		return nil, s, &guard.RejectedError{Reason: guard.ReasonNotFound, Claim: guard.Claim{Resource: key}, Mark: s.mark}
	}
	return &Object{Key: key, Mark: s.mark, ETag: s.etag, LastModified: s.modified}, s, nil
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

// List yields the objects whose key begins with prefix, in the order of their keys,
// without tombstones and this package's internal objects. Objects that are not fenced
// are listed. It takes one request per 1,000 objects, and one for each object that is as
// long as a tombstone.
//
// An entry of that length whose object the store does not let be read, or that is
// damaged, comes with an error that names its key, and the listing goes on if the
// loop does. It ends with an entry without a key if the store cannot be asked any
// more.
//
// It is not a snapshot: concurrent changes may or may not be seen.
// Errors, as the last pair: ErrUnavailable, and ErrInvalid for a prefix that no key has,
// before anything is sent.
func (o *fenced) List(ctx context.Context, prefix string) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		if len(prefix) > maxKey || !utf8.ValidString(prefix) {
			yield(Entry{}, guard.Invalid("prefix", prefix, "must be UTF-8 of at most "+strconv.Itoa(maxKey)+" bytes"))
			return
		}
		for object, err := range o.b.list(ctx, prefix) {
			e := Entry{
				Key: aws.ToString(object.Key), StoredSize: aws.ToInt64(object.Size),
				ETag: aws.ToString(object.ETag), LastModified: aws.ToTime(object.LastModified),
			}
			hidden, unread := false, error(nil)
			if err == nil {
				hidden, err = o.hidden(ctx, &e)
				if skippable(err) {
					unread, err = guard.Unavailable(opName("list", e.Key), guard.Claim{}, o.b.explain(err)), nil
				}
			}
			if err != nil {
				yield(Entry{}, guard.Unavailable(opName("list", prefix), guard.Claim{}, o.b.explain(err)))
				return
			}
			if !hidden && !yield(e, unread) {
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
	s, err := o.b.look(ctx, e.Key, tailSize)
	return err == nil && s.gone(), err
}
