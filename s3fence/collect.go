package s3fence

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/fencepost-go/fencepost/guard"
)

// Collected is what [Objects.Collect] did.
type Collected struct {
	// Pointers is how many pointers and tombstones were looked at, Damaged how
	// many objects were left alone because they could not be verified.
	Pointers, Damaged int64
	// Deleted is how many data objects were deleted, Bytes their length.
	Deleted, Bytes int64
}

// Collect deletes the data that pointers and tombstones with the given key
// prefix have left for longer than the grace period. It may run anywhere, at
// any time, beside writers, readers and other collectors; running it again
// goes on where it was interrupted.
//
// Deleted is only data that no pointer can name any more: data of a lower token
// than the pointer's mark, whose writer, however long it was paused, would now
// be refused; and data of the mark's own token that the pointer names as
// replaced. Never what the pointer points to. Data that a crashed writer left
// under the highest token so far goes when the token grows; data without any
// pointer stays.
//
// Errors: ErrInvalid for objects that are not Pointer; ErrUnavailable; what
// was deleted before is counted.
func (o *Objects) Collect(ctx context.Context, prefix string) (Collected, error) {
	if o.mode != Pointer {
		return Collected{}, guard.Invalid("mode", o.mode.String(), "has no data to collect")
	}
	var done Collected
	op := opName("collect", prefix)
	if err := ended(ctx, op, guard.Claim{}); err != nil {
		return done, err
	}
	err := o.b.list(ctx, prefix, "", func(object types.Object) error {
		key := aws.ToString(object.Key)
		// What is longer than a tail is no pointer.
		if internal(key) || aws.ToInt64(object.Size) > tailSize {
			return nil
		}
		return o.b.collect(ctx, key, &done)
	})
	if err != nil {
		return done, guard.Unavailable(op, guard.Claim{}, o.b.explain(err))
	}
	return done, nil
}

// collect deletes what one pointer has left.
func (b *Bucket) collect(ctx context.Context, key string, done *Collected) error {
	s, err := b.peek(ctx, key)
	if errors.As(err, new(*DamagedError)) {
		done.Damaged++
		return nil
	}
	if err != nil {
		return err
	}
	if s.kind != kindPointer && s.kind != kindTombstone {
		return nil
	}
	done.Pointers++
	p := s.pointer()
	prefix := b.dataPrefix(key)
	now := b.clock()
	return b.list(ctx, prefix, "", func(object types.Object) error {
		name := aws.ToString(object.Key)
		token, id, ok := parseDataKey(strings.TrimPrefix(name, prefix))
		if !ok || name == p.Data || !b.left(&s, p, token, id, now) {
			return nil
		}
		if err := b.remove(ctx, name); err != nil {
			return err
		}
		done.Deleted++
		done.Bytes += aws.ToInt64(object.Size)
		return nil
	})
}

// left reports that the pointer has not been at the data for a grace period and
// never will be again. Nothing that happens between the reading of the pointer
// and the deletion changes that: marks only grow, and no write of a pointer
// takes effect twice.
func (b *Bucket) left(s *state, p pointer, token guard.Token, id writeID, now time.Time) bool {
	old := func(at time.Time) bool { return now.Sub(at) >= b.opts.GracePeriod }
	switch {
	case token == s.mark.Token:
		return id != s.id && slices.Contains(s.recent, id) && old(s.modified)
	case token > s.mark.Token:
		return false
	case old(s.modified):
		return true
	}
	for _, at := range []*since{p.Settled, p.Later} {
		if at != nil && token < at.Token && old(at.At) {
			return true
		}
	}
	return false
}
