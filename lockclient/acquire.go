package lockclient

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/input"
	"github.com/fencepost-go/fencepost/lockclient/internal/pause"
	"github.com/fencepost-go/fencepost/lockclient/internal/waiting"
)

// request is one TryAcquire or Acquire with everything but the context.
type request struct {
	driver.Request
	// interval is between renewals, once they begin.
	interval time.Duration
	// given says that the caller chose the lease ID and may present it again.
	given bool
	// lost says that an attempt got no response, the last of them at lostAt, so that it
	// may still arrive.
	lost   bool
	lostAt time.Duration
}

// TryAcquire asks once for the lease on resource.
//
// If somebody else has it, nothing is written and the error is [ErrHeld]. An attempt whose
// response is lost is repeated under the same lease ID, until ctx ends or
// Options.OpTimeout has passed, and finds its own grant. When ctx ends, an attempt in
// flight may take a tenth of a second more, so that its outcome is known.
//
// Release the lease, or let it run out. Renew it with [Lease.KeepAlive]. opts may be nil.
//
// Errors:
//   - ErrHeld, a [*HeldError]: somebody else has the lease.
//   - guard.ErrInvalid: an argument is refused, or the lease ID is that of another owner's
//     running lease. Nothing was granted.
//   - ErrLeaseIDSpent: the lease ID was released or abandoned before.
//   - guard.ErrSetup: no retry helps, for example without a schema, or with a closed client.
//   - guard.ErrUnavailable: nothing is held. It wraps the cause of an ended context.
//   - guard.ErrOutcomeUnknown: the lease may have been granted. The [guard.FailedError] has
//     its ID in the claim. At the latest the TTL frees it. If the ID was yours, repeat
//     the call under it.
func (c *Client) TryAcquire(ctx context.Context, resource string, opts *AcquireOptions) (*Lease, error) {
	return c.acquire(ctx, resource, opts, false)
}

// acquire ends by releasing in the background what an attempt whose response was lost may
// have left or may yet leave. That invalidates the lease ID, so it is its last use. It is
// not done under an ID that the caller chose: the caller may present it again, and the
// release could arrive after that.
func (c *Client) acquire(ctx context.Context, resource string, opts *AcquireOptions, waiting bool) (lease *Lease, err error) {
	r, err := c.request(resource, opts)
	if err != nil {
		return nil, err
	}
	if c.open.Err() == nil && c.work.Begin() {
		defer c.work.End()
	}
	r.Waiting = waiting
	began := c.clock()
	if waiting {
		if err := c.waitsForItself(ctx, r.Resource); err != nil {
			return nil, err
		}
		lease, err = c.wait(ctx, r)
	} else {
		lease, err = c.try(ctx, r)
	}
	switch {
	case err == nil || !r.lost:
	case !r.given:
		c.abandon(ctx, r)
	case c.clock()-r.lostAt < r.Timeout && !errors.Is(err, ErrLeaseIDSpent) && !errors.Is(err, guard.ErrOutcomeUnknown):
		// The lost attempt may be granted yet, so that ErrHeld would promise too much.
		err = guard.OutcomeUnknown("acquire", r.Claim(), fmt.Errorf("an attempt got no response; a later one: %v", err))
	}
	c.acquired(ctx, r, lease, err, c.clock()-began)
	return lease, err
}

// request validates; nothing is sent before it succeeds.
func (c *Client) request(resource string, opts *AcquireOptions) (*request, error) {
	resource, err := c.namespace.Resource(resource)
	if err != nil {
		return nil, err
	}
	set, err := opts.withDefaults(c.limits)
	if err != nil {
		return nil, err
	}
	if most := c.limits.ResourceBytes; most > 0 && len(resource) > most {
		return nil, guard.Invalid("resource", resource, fmt.Sprintf("is %d bytes long, this issuer takes %d", len(resource), most))
	}
	return &request{given: set.LeaseID != "", interval: set.RenewInterval, Request: driver.Request{
		Resource: resource, Owner: c.owner, LeaseID: cmp.Or(set.LeaseID, input.NewLeaseID()), Metadata: cmp.Or(set.Metadata, c.whereabouts),
		TTL: set.TTL, Timeout: min(c.set.OpTimeout, set.TTL),
	}}, nil
}

// try asks until there is a response. It makes one attempt unless a response is
// lost, or the holder changes between two statements.
func (c *Client) try(ctx context.Context, r *request) (*Lease, error) {
	if err := c.usable(ctx); err != nil {
		return nil, unusable("acquire", r.Claim(), err)
	}
	var lost error // the first attempt whose response was lost
	var since time.Duration
	for attempt, races := 0, 0; ; attempt++ {
		ask := r.Request
		if end, ok := ctx.Deadline(); ok { // after which nobody wants the lease (P8)
			if ask.Timeout = min(ask.Timeout, time.Until(end)); ask.Timeout <= 0 {
				return nil, cmp.Or(lost, guard.Unavailable("acquire", r.Claim(), context.DeadlineExceeded))
			}
		}
		g, err := c.issuer.Acquire(ctx, ask)
		var held *HeldError
		switch {
		case err == nil:
			return c.handOut(ctx, r, g)
		case errors.As(err, &held) && held.Remaining > 0:
			return nil, held
		case held != nil:
			if races++; races < waiting.MaxRaces && ctx.Err() == nil {
				continue
			}
			err = guard.Unavailable("acquire", r.Claim(), errRaced)
		case errors.Is(err, ErrLeaseIDSpent):
			return nil, err
		case errors.Is(err, driver.ErrLate) && attempt == 0 && ctx.Err() == nil: // the issuer had to prepare first
			continue
		case errors.Is(err, guard.ErrOutcomeUnknown):
			r.lost, r.lostAt = true, c.clock()
			if lost == nil {
				lost, since = err, r.lostAt
			}
		}
		if lost == nil {
			return nil, pause.WithCause(ctx, err)
		}
		if c.clock()-since >= c.set.OpTimeout || !c.pause(ctx, pause.Backoff(attempt, pause.Last)) {
			return nil, pause.WithCause(ctx, lost)
		}
	}
}

// handOut makes a Lease from a grant, unless it came too late: after the
// lease's own deadline, the end of ctx or Close. Then a grant under an ID of
// ours is released, and the error says whether that is known to have worked.
func (c *Client) handOut(ctx context.Context, r *request, g driver.Grant) (*Lease, error) {
	claim := guard.Claim{Resource: r.Resource, Token: g.Token, LeaseID: r.LeaseID}
	ttl := cmp.Or(g.TTL, r.TTL)
	until := deadline(g.From, ttl)
	late, now := c.usable(ctx), c.clock()
	if late == nil && now >= until {
		late = errLate
	}
	if late == nil {
		return newLease(ctx, c, r, claim, g, ttl, until, now), nil
	}
	if r.given {
		return nil, guard.OutcomeUnknown("acquire", claim, late)
	}
	r.lost = false // it is released here
	released := c.abandon(ctx, r)
	patience := time.NewTimer(c.grace)
	defer patience.Stop()
	select {
	case err := <-released:
		if err == nil {
			return nil, guard.Unavailable("acquire", claim, late)
		}
		late = fmt.Errorf("%w; releasing the lease failed: %w", late, err)
	case <-patience.C:
	}
	return nil, guard.OutcomeUnknown("acquire", claim, late)
}

// abandon releases in the background a grant that nobody got or may yet be
// made, until it would have run out in any case, or Close has waited long enough.
// The channel gets the outcome.
func (c *Client) abandon(ctx context.Context, r *request) <-chan error {
	outcome := make(chan error, 1)
	ctx = context.WithoutCancel(ctx)
	claim, most := r.Claim(), r.Timeout+r.TTL
	if !c.work.Go(func() {
		bounded, cancel := context.WithTimeout(ctx, most)
		defer cancel()
		defer context.AfterFunc(c.patience, cancel)()
		defer context.AfterFunc(c.open, func() { time.AfterFunc(c.set.OpTimeout, cancel) })()
		_, err := c.free(bounded, claim, true)
		if err != nil {
			c.releaseFailed(ctx, claim, err)
		}
		outcome <- err
	}) {
		outcome <- ErrClosed
	}
	return outcome
}

// pause waits; false if ctx ended or the client was closed first.
func (c *Client) pause(ctx context.Context, d time.Duration) bool {
	return pause.For(ctx, d, c.open.Done())
}
