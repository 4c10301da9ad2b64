package lockclient

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/pause"
)

// TryAcquire asks once for the lease on resource. Granted, it costs one round
// trip; the client's first call, and the first after the server was restarted
// or failed over, costs two or three more, for the schema's version and the
// server's [Epoch]. Refused, it costs two and writes nothing.
//
// An attempt whose answer is lost is repeated under the same lease ID, until
// ctx ends or Options.OpTimeout has passed, and finds its own grant. When ctx
// ends, an attempt under way may take a tenth of a second more, so that its
// outcome is known. A grant that cannot be handed out, or may have been made
// unnoticed, is released in the background, unless the caller chose the lease
// ID: he may present it again, and that release could come after.
//
// Errors: [ErrHeld] (a [*HeldError]); guard.ErrInvalid (nothing was sent);
// guard.ErrUnavailable (nothing is held; also for a cancelled context and a
// closed pool, whose errors are wrapped); guard.ErrOutcomeUnknown (the lease
// may have been granted: the [guard.FailedError] has its ID in the claim; at the
// latest the TTL frees it. Repeat it under the same ID if that was yours).
func (c *Client) TryAcquire(ctx context.Context, resource string, opts *AcquireOptions) (*Lease, error) {
	r, err := c.request(resource, opts)
	if err != nil {
		return nil, err
	}
	began := c.clock()
	lost := false
	lease, err := c.try(ctx, r, &lost)
	c.giveUp(ctx, r, err, lost)
	c.acquired(ctx, r, lease, err, c.clock()-began)
	return lease, err
}

// request validates; nothing is sent before it succeeds.
func (c *Client) request(resource string, opts *AcquireOptions) (request, error) {
	resource, err := c.namespace.Resource(resource)
	if err != nil {
		return request{}, err
	}
	ttl, leaseID, err := opts.validate()
	if err != nil {
		return request{}, err
	}
	return request{
		resource: resource, owner: c.owner, leaseID: leaseID, given: opts.LeaseID != "",
		ttl: ttl, timeout: min(c.set.opTimeout, ttl),
	}, nil
}

const (
	firstPause = 5 * time.Millisecond
	lastPause  = 250 * time.Millisecond
	maxRaces   = 10
)

// try asks until there is an answer. It makes one attempt unless an answer is
// lost, which it notes in anyLost, or the holder changes between two statements.
func (c *Client) try(ctx context.Context, r request, anyLost *bool) (*Lease, error) {
	if err := c.usable(ctx); err != nil {
		return nil, guard.Unavailable("acquire", r.claim(), err)
	}
	var lost error // the first attempt whose answer was lost
	var since time.Duration
	for attempt, races := 0, 0; ; attempt++ {
		a, err := c.issuer.acquire(ctx, r)
		switch {
		case err == nil && a.granted:
			return c.handOut(ctx, r, a)
		case err == nil && a.held != nil:
			return nil, a.held
		case err == nil:
			if races++; races < maxRaces && ctx.Err() == nil {
				continue
			}
			err = guard.Unavailable("acquire", r.claim(), errors.New("the holder changed with every attempt"))
		case errors.Is(err, guard.ErrOutcomeUnknown) && lost == nil:
			lost, since, *anyLost = err, c.clock(), true
		}
		if lost == nil {
			return nil, pause.WithCause(ctx, err)
		}
		if c.clock()-since >= c.set.opTimeout || !c.pause(ctx, pause.Backoff(attempt)) {
			return nil, pause.WithCause(ctx, lost)
		}
	}
}

// giveUp releases what an attempt whose answer was lost may have left behind,
// or may yet leave when it arrives late. It must be the last that is done under
// the lease ID: a release that overtakes a later grant would free that one.
func (c *Client) giveUp(ctx context.Context, r request, err error, lost bool) {
	if err != nil && lost && !r.given {
		c.abandon(ctx, r.claim())
	}
}

// handOut makes the lease of a grant, unless it came too late: after the
// lease's own deadline or after the end of ctx. Then a grant under an ID of ours
// is released, and the error says whether that is known to have worked.
func (c *Client) handOut(ctx context.Context, r request, a answer) (*Lease, error) {
	claim := guard.Claim{Resource: r.resource, Token: a.token, LeaseID: r.leaseID}
	until := deadline(a.sent, r.ttl)
	late := context.Cause(ctx)
	if late == nil && c.clock() >= until {
		late = errLate
	}
	if late == nil {
		return newLease(c, claim, a, r.ttl, until), nil
	}
	if r.given {
		return nil, guard.OutcomeUnknown("acquire", claim, late)
	}
	released := c.abandon(ctx, claim)
	patience := time.NewTimer(c.set.grace)
	defer patience.Stop()
	select {
	case err := <-released:
		if err == nil {
			return nil, guard.Unavailable("acquire", claim, late)
		}
		late = fmt.Errorf("%w; the release: %w", late, err)
	case <-patience.C:
	}
	return nil, guard.OutcomeUnknown("acquire", claim, late)
}

// abandon releases what may have been granted to nobody, beside the caller. The
// channel gets the outcome.
func (c *Client) abandon(ctx context.Context, claim guard.Claim) <-chan error {
	outcome := make(chan error, 1)
	ctx = context.WithoutCancel(ctx)
	if !c.spawn(func() {
		_, err := c.free(ctx, claim, true)
		if err != nil {
			c.events.releaseFailed(ctx, c.owner, claim, err)
		}
		outcome <- err
	}) {
		outcome <- errClientClosed
	}
	return outcome
}

// pause waits; false if ctx ended or the client was closed first.
func (c *Client) pause(ctx context.Context, d time.Duration) bool { return pause.For(ctx, d, c.closed) }
