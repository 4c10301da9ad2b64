package lockclient

import (
	"context"
	"errors"
	"fmt"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/waiting"
)

// Acquire waits until the lease on resource is granted or ctx ends. It asks
// under one lease ID, and asks again when the issuer notifies it of a release
// and when the holder's lease runs out. The waiters of one client queue
// per resource and only the first asks. Among clients the issuer wakes the one
// that has waited longest, if it can; PostgreSQL does. Where releases are not
// notified, as behind a pooler in transaction mode, it polls, with jittered
// pauses that grow from a fifth of Options.PollInterval to the whole.
//
// The errors are those of [Client.TryAcquire], but a held lease is not an error
// until ctx ends or the client is closed: then the error wraps the cause of ctx, or
// [ErrClosed], and the last [*HeldError]. Acquire also goes on after a lock timeout on the server, and
// when other clients come first each time; every other failure ends the wait.
func (c *Client) Acquire(ctx context.Context, resource string, opts *AcquireOptions) (*Lease, error) {
	return c.acquire(ctx, resource, opts, true)
}

// wait acquires in turn with the client's other waiters.
func (c *Client) wait(ctx context.Context, r *request) (lease *Lease, err error) {
	var held *HeldError // the last refusal
	var last error      // the last try's error
	w := &waiting.Waiter{
		Resource: r.Resource, LeaseID: r.LeaseID, First: r.given, Poll: c.limits.Poll, Nap: c.set.PollInterval,
		Watch: c.watch, Closed: c.open.Done(),
		Heard: func(h *HeldError) {
			if held == nil {
				c.contended(ctx, r, h)
			}
			held = h
		},
		Ask: func(ctx context.Context) (waiting.Verdict, *HeldError) {
			lease, err = c.try(ctx, r)
			last = err
			var refusal *HeldError
			switch {
			case err == nil:
				return waiting.Over, nil
			case errors.As(err, &refusal):
				return waiting.Refused, refusal
			case c.usable(ctx) != nil:
				return waiting.Over, nil
			case errors.Is(err, driver.ErrBusy), errors.Is(err, errRaced):
				return waiting.Busy, nil
			}
			return waiting.Failed, nil
		},
	}
	over, known := c.waiters.Wait(ctx, w)
	switch {
	case !over && known != nil:
		return nil, c.ended(ctx, r, known)
	case !over && last == nil && held != nil: // its lease has run out since
		return nil, c.ended(ctx, r, held)
	case !over:
		return nil, c.ended(ctx, r, last)
	case err != nil && held != nil:
		err = fmt.Errorf("%w; before that: %v", err, held) // it is no longer known to be held
	}
	return lease, err
}

// watch is the issuer's Watch as one call with its own end: the waiter polls if it
// gets no response.
func (c *Client) watch(ctx context.Context, w driver.Watch, wake func()) (driver.Watching, error) {
	ctx, cancel := context.WithTimeout(ctx, c.set.OpTimeout)
	defer cancel() // which does not end the watch
	return c.issuer.Watch(ctx, w, wake)
}

// ended is the error of a wait that ended between two tries; last is what is known of
// the lease.
func (c *Client) ended(ctx context.Context, r *request, last error) error {
	switch {
	case ctx.Err() == nil && last == nil:
		return guard.Setup("acquire", r.Claim(), ErrClosed)
	case ctx.Err() == nil && errors.Is(last, guard.ErrUnavailable): // which a closed client is not
		return fmt.Errorf("%w; before that: %v", guard.Setup("acquire", r.Claim(), ErrClosed), last)
	case ctx.Err() == nil:
		return fmt.Errorf("%w; before that: %w", guard.Setup("acquire", r.Claim(), ErrClosed), last)
	case last == nil: // in the queue behind others that have no response yet
		return guard.Unavailable("acquire", r.Claim(), context.Cause(ctx))
	}
	return fmt.Errorf("fencepost: waiting for %q: %w: %w", r.Resource, context.Cause(ctx), last)
}
