package s3fence

import (
	"context"

	"github.com/fencepost-go/fencepost/guard"
)

// Copy writes the body and headers of the object from to the key to, under claim,
// as [Objects.Put] does: read here and written on condition, never by S3's
// CopyObject, whose destination has no condition on most stores and which would
// carry the mark along. from is not changed, and may be changed by others
// meanwhile: to holds a version that was there during the call.
// Errors: as [Objects.Get] and [Objects.Put].
func (o *Objects) Copy(ctx context.Context, claim guard.Claim, from, to string) error {
	if _, err := o.begin("copy", claim, to); err != nil {
		return err
	}
	_, err := o.copyTo(ctx, claim, from, to)
	return err
}

// copyTo returns the ETag of what was copied.
func (o *Objects) copyTo(ctx context.Context, claim guard.Claim, from, to string) (string, error) {
	object, err := o.Get(ctx, from)
	if err != nil {
		return "", err
	}
	defer object.Body.Close()
	return object.ETag, o.Put(ctx, claim, to, object.Body, &PutOptions{Headers: object.Headers})
}

// Rename moves the object from to the key to, under claim, which both keys' marks
// must admit. It raises from's mark first, so that no older holder writes there
// any more; then it copies, and deletes from if that still is what was copied, or
// copies again. What stays at from is a tombstone.
//
// It is not atomic: in between, and after an error, the object may be under both
// keys, never under none. Calling it again completes it; when it had been
// complete, that is ErrNotFound. It is refused where [Objects.Raise] is.
// Errors: as Raise, Get and Put.
func (o *Objects) Rename(ctx context.Context, claim guard.Claim, from, to string) error {
	if from == to {
		return guard.Invalid("key", to, "is the one to rename from")
	}
	if _, err := o.begin("rename", claim, to); err != nil {
		return err
	}
	if err := o.Raise(ctx, claim, from); err != nil {
		return err
	}
	for range maxFollows {
		etag, err := o.copyTo(ctx, claim, from, to)
		if err != nil {
			return err
		}
		c, err := o.begin("delete", claim, from)
		if err != nil {
			return err
		}
		changed := false
		c.next = func(_ context.Context, base *state) (*write, error) {
			if err := o.admit(claim, from, base); err != nil {
				return nil, err
			}
			if changed = base.etag != etag; changed {
				return nil, nil
			}
			return o.tombstone(from, base, claim, c.id), nil
		}
		if _, err := o.swap(ctx, guard.OpWrite, c); err != nil || !changed {
			return err
		}
	}
	return guard.OutcomeUnknown(opName("rename", from), claim, errChanged)
}
