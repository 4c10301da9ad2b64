package lockclient

import (
	"context"
	"errors"
	"fmt"

	"github.com/fencepost-go/fencepost/guard"
)

// Hold waits for the lease on resource as [Client.Acquire] does, renews it while fn runs,
// and releases it when fn has returned, panicked or ended its goroutine.
//
// If the lease is not granted, fn is not called and the error is Acquire's. A Hold or
// Acquire of the same resource on the context that fn got is refused with
// guard.ErrInvalid: it would wait for this one.
//
// The context that fn gets carries the lease ([guard.WithLease]), so that the
// fences further down find the claim. It ends with ctx, when the lease is lost, and when
// the client is closed; fn should return soon after. The lease is renewed until fn has
// returned. One failed renewal does not lose it: it is repeated until the deadline.
//
// Leader election is Hold in a loop: while the issuer is down, Hold waits. opts may be nil.
//
// Errors, besides Acquire's:
//   - fn's own.
//   - ErrLeaseLost, which wraps fn's error, if any: the lease was lost before fn returned,
//     and fn may have run concurrently with the next holder. The fences decide whether its
//     writes since then took effect.
//
// A failed release is reported and is no error: the TTL frees the lease.
func (c *Client) Hold(ctx context.Context, resource string, opts *AcquireOptions, fn func(ctx context.Context) error) error {
	return c.holdWith(ctx, resource, opts, true, fn)
}

// TryHold is like [Client.Hold] but does not wait: if somebody else has the
// lease, fn is not called and the error is [ErrHeld].
func (c *Client) TryHold(ctx context.Context, resource string, opts *AcquireOptions, fn func(ctx context.Context) error) error {
	return c.holdWith(ctx, resource, opts, false, fn)
}

func (c *Client) holdWith(ctx context.Context, resource string, opts *AcquireOptions, waiting bool, fn func(ctx context.Context) error) (err error) {
	if fn == nil {
		return guard.Invalid("fn", "nil", "must not be nil")
	}
	if c.open.Err() == nil && c.work.Begin() {
		defer c.work.End()
	}
	lease, err := c.acquire(ctx, resource, opts, waiting)
	if err != nil {
		return err
	}
	outer, _ := ctx.Value(holdingKey{}).(*holding)
	held, cancel := context.WithCancelCause(lease.Context(context.WithValue(ctx, holdingKey{}, &holding{lease, outer})))
	defer cancel(nil)
	// Deferred and without recover: a panic or runtime.Goexit in fn goes on by
	// itself, with its own stack, once the lease is released.
	returned := false
	stop := context.AfterFunc(c.open, func() { cancel(ErrClosed) })
	defer func() {
		stop()
		wasHeld := lease.endReleased() // ends held, before anybody else can be granted
		lost := lease.release(ctx, wasHeld)
		if !wasHeld {
			lost = lease.Err()
		}
		if returned {
			err = outcome(err, lost)
		}
	}()
	if err := lease.keepAlive(0); err != nil {
		return err
	}
	err = fn(held)
	returned = true
	return err
}

// holding is a lease that the context of a Hold's function stands under, and the one
// around it.
type holding struct {
	lease *Lease
	outer *holding
}

type holdingKey struct{}

// waitsForItself returns an error if waiting for the resource would wait for a Hold
// that ctx comes from.
func (c *Client) waitsForItself(ctx context.Context, resource string) error {
	h, _ := ctx.Value(holdingKey{}).(*holding)
	for ; h != nil; h = h.outer {
		if h.lease.client == c && h.lease.claim.Resource == resource && h.lease.Valid() {
			return guard.Invalid("resource", resource, fmt.Sprintf(
				"is held by the Hold that this context comes from, under token %v and lease ID %q: waiting for it would wait for itself", h.lease.claim.Token, h.lease.claim.LeaseID))
		}
	}
	return nil
}

// outcome combines fn's error and the loss of the lease.
func outcome(err, lost error) error {
	switch {
	case !errors.Is(lost, ErrLeaseLost):
		return err
	case err == nil:
		return lost
	}
	return fmt.Errorf("%w; fn returned: %w", lost, err)
}
