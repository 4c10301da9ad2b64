package s3fence

import (
	"context"
	"errors"
	"iter"
	"time"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/fencepost-go/fencepost/guard"
)

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
	// Prefix is what keys begin with.
	Prefix string
	// After leaves out keys up to this one, to go on with an earlier listing.
	After string
	// Marks reads each object's mark, which takes a request each, and lists
	// tombstones, too. An object whose mark cannot be told comes with an error
	// (ErrUnfenced, or ErrUnavailable for a [*DamagedError]), and the listing
	// goes on if the loop does.
	Marks bool
}

var errStop = errors.New("stop")

// List yields the objects in the order of their keys, without tombstones and
// without what this package keeps beside the objects. Objects that are not
// fenced are listed. It takes one request per 1,000 objects, and one for each
// object that is as long as a tombstone. opts may be nil.
//
// It is no snapshot: what changes meanwhile may or may not be seen.
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

// hidden reports what is not listed: internals and tombstones. With marks it reads
// the object and completes the entry.
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
		return false, nil // reading it says what is wrong
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
