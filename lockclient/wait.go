package lockclient

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/waiting"
)

// Acquire waits until the lease on resource is granted or ctx ends.
//
// It asks when the issuer notifies it of a release, when the holder's lease runs out, and
// now and then on its own. The waiters of one client queue for each resource, and one of
// them asks. Among clients the issuer wakes the one that has waited longest, if it
// can. Where releases are not notified, as behind a pooler in transaction mode, Acquire
// polls, with jittered pauses that grow to a second.
//
// Acquire goes on while the issuer is down: give ctx a deadline if you do not want to wait
// for that. The first failure is logged as lock_acquire_retried. opts may be nil.
//
// Errors, besides those of [Client.TryAcquire]: when ctx ends or the client is closed, the
// error wraps the cause of ctx, or [ErrClosed], and what is known:
//   - ErrHeld: a holder was seen, and the issuer has not failed since.
//   - guard.ErrUnavailable: the issuer failed, or gave no response yet.
//   - guard.ErrOutcomeUnknown: the response to an attempt was lost.
func (c *Client) Acquire(ctx context.Context, resource string, opts *AcquireOptions) (*Lease, error) {
	return c.acquire(ctx, resource, opts, true)
}

// wait acquires in turn with the client's other waiters.
func (c *Client) wait(ctx context.Context, r *request) (lease *Lease, err error) {
	var held *HeldError // the last refusal
	var failed error    // the first failure since, or the first whose outcome is unknown
	retried, cut := false, false
	over, known := c.waiters.Wait(ctx, &waiting.Waiter{
		Resource: r.Resource, LeaseID: r.LeaseID, First: r.given, Poll: c.limits.Poll, Nap: longestNap,
		Watch: c.watch, Closed: c.open.Done(),
		Heard: func(h *HeldError) {
			if held == nil {
				c.contended(ctx, r, h)
			}
			held, failed = h, nil
		},
		Ask: func(ctx context.Context) (waiting.Verdict, *HeldError) {
			lease, err = c.try(ctx, r)
			refusal, refused := errors.AsType[*HeldError](err)
			unknown := errors.Is(err, guard.ErrOutcomeUnknown)
			switch {
			case err == nil:
				return waiting.Over, nil
			case refused:
				return waiting.Refused, refusal
			case c.usable(ctx) != nil:
				cut = !unknown && ctx.Err() != nil // as if it had ended between two tries
				return waiting.Over, nil
			case !unknown && !errors.Is(err, guard.ErrUnavailable): // no retry cures it
				return waiting.Failed, nil
			}
			passes := errors.Is(err, driver.ErrBusy) || errors.Is(err, errRaced) // somebody has it, or just had
			if failed == nil && !(passes && held != nil) || unknown && !errors.Is(failed, guard.ErrOutcomeUnknown) {
				failed = err
			}
			if !passes && !retried {
				retried = true
				c.retried(ctx, r, err)
			}
			return waiting.Busy, nil
		},
	})
	switch {
	case over && !cut && err != nil && held != nil:
		err = fmt.Errorf("%w; before that: %v", err, held) // it is no longer known to be held
	case over && !cut:
	case failed != nil && held != nil:
		err = fmt.Errorf("%w; before that: %v", c.ended(ctx, r, failed), held)
	case failed != nil:
		err = c.ended(ctx, r, failed)
	case known != nil:
		err = c.ended(ctx, r, known)
	case held != nil: // its lease has run out since
		err = c.ended(ctx, r, held)
	default:
		err = c.ended(ctx, r, nil)
	}
	return lease, err
}

// longestNap is the longest pause between two tries where nothing can be watched: behind
// a pooler, or while the server is down. A lease is handed over within half of it on
// average; a thousand waiting processes ask some 1,300 times a second.
const longestNap = time.Second

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
