package lockclient

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// Acquire waits until the lease on resource is granted or ctx ends. It asks
// again and again under one lease ID, with pauses that grow from a fifth of
// Options.PollInterval to the whole and are jittered, or when the holder's
// lease runs out if that is sooner. It queues nobody: of several waiters any
// may be next.
//
// The errors are those of [Client.TryAcquire], but a lease that is held is no
// error until ctx ends: then the error wraps the cause of ctx and the last
// [*HeldError]. A lock timeout on the server is waited out as well; every other
// failure ends the wait.
func (c *Client) Acquire(ctx context.Context, resource string, opts *AcquireOptions) (*Lease, error) {
	r, err := c.request(resource, opts)
	if err != nil {
		return nil, err
	}
	began := c.clock()
	lost := false
	lease, err := c.wait(ctx, r, &lost)
	c.giveUp(ctx, r, err, lost)
	c.acquired(ctx, r, lease, err, c.clock()-began)
	return lease, err
}

func (c *Client) wait(ctx context.Context, r request, lost *bool) (*Lease, error) {
	var held *HeldError // the last refusal
	for pause := c.set.pollInterval / 5; ; pause = min(pause*3/2, c.set.pollInterval) {
		lease, err := c.try(ctx, r, lost)
		var refusal *HeldError
		switch {
		case err == nil:
			return lease, nil
		case errors.As(err, &refusal):
			if held == nil {
				c.events.contended(ctx, r, refusal)
			}
			held = refusal
		case !contention(err) || c.usable(ctx) != nil:
			if held != nil {
				err = fmt.Errorf("%w; before that: %w", err, held)
			}
			return nil, err
		}
		nap := jitter(max(pause, time.Millisecond), 2)
		if refusal != nil && refusal.Remaining < nap {
			// Not before it is over, and not all waiters at once.
			nap = max(0, refusal.Remaining) + jitter(5*time.Millisecond, 1)
		}
		if !c.pause(ctx, nap) {
			return nil, c.ended(ctx, r, err)
		}
	}
}

// ended is the error of a wait that was ended between two tries.
func (c *Client) ended(ctx context.Context, r request, last error) error {
	if ctx.Err() == nil {
		return fmt.Errorf("%w; before that: %w", guard.Unavailable("acquire", r.claim(), errClientClosed), last)
	}
	return fmt.Errorf("fencepost: waiting for %q: %w: %w", r.resource, context.Cause(ctx), last)
}
