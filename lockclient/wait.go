package lockclient

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/pause"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"
)

// Acquire waits until the lease on resource is granted or ctx ends. It asks
// under one lease ID, again when the holder releases the lease, which the server
// tells it (LISTEN and NOTIFY), and when the holder's lease runs out. The
// waiters of one client stand in line by resource and one of them asks; among
// clients any may be next. Where the server's notifications do not arrive, as
// behind a pooler in transaction mode, it asks again and again, with jittered
// pauses that grow from a fifth of Options.PollInterval to the whole.
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

// waiter is one Acquire.
type waiter struct {
	c     *Client
	r     request
	place *place
	bell  bell          // nil: poll
	sub   *subscription // from the first refusal on
	pause time.Duration // the next one between two polls

	held    *HeldError // the last refusal
	last    error      // what the last try said
	remains time.Duration
	hurried int // how often it asked again at once
}

func (c *Client) wait(ctx context.Context, r request, lost *bool) (lease *Lease, err error) {
	w := &waiter{c: c, r: r, place: c.waiters.join(r.resource), pause: c.set.pollInterval / 5}
	w.bell, _ = c.issuer.(bell)
	defer func() {
		if w.sub != nil {
			w.bell.unsubscribe(w.sub)
		}
		w.place.leave(err != nil && c.usable(ctx) == nil)
	}()
	if !w.place.first() {
		// Who presents a lease ID of his own may have the lease already.
		if r.given {
			if lease, err = w.ask(ctx, lost); lease != nil || err != nil {
				return lease, err
			}
		} else if held := w.place.noted(); held != nil {
			w.note(ctx, held)
		}
		select {
		case <-w.place.turn:
		case <-ctx.Done():
			return nil, w.ended(ctx)
		case <-c.closed:
			return nil, w.ended(ctx)
		}
	}
	for {
		if lease, err = w.ask(ctx, lost); lease != nil || err != nil {
			return lease, err
		}
		if err = w.rest(ctx); err != nil {
			return nil, err
		}
	}
}

// ask tries once. It returns neither lease nor error if it is to go on.
func (w *waiter) ask(ctx context.Context, lost *bool) (*Lease, error) {
	lease, err := w.c.try(ctx, w.r, lost)
	var refusal *HeldError
	switch {
	case err == nil:
		return lease, nil
	case errors.As(err, &refusal):
		w.note(ctx, refusal)
		w.remains = refusal.Remaining
	case !pglease.Contention(err) || w.c.usable(ctx) != nil:
		if w.held != nil {
			err = fmt.Errorf("%w; before that: %w", err, w.held)
		}
		return nil, err
	default:
		w.remains = -1
	}
	w.last = err
	return nil, nil
}

func (w *waiter) note(ctx context.Context, held *HeldError) {
	if w.held == nil {
		w.c.events.contended(ctx, w.r, held)
	}
	w.held, w.last = held, held
	w.place.note(held)
}

// rest returns when it is worth while to ask again; its error ends the wait.
func (w *waiter) rest(ctx context.Context) error {
	if w.bell == nil {
		return w.nap(ctx)
	}
	if w.sub == nil {
		w.sub = w.bell.subscribe(w.r.resource)
	}
	for {
		down := w.bell.listening()
		if down == nil {
			return w.nap(ctx)
		}
		moved := w.c.jumps.moved()
		held, marked, err := w.bell.watch(ctx, w.r)
		if err != nil {
			return w.nap(ctx) // the next try says what is wrong
		}
		if held == nil || !marked {
			if w.hurried++; w.hurried < maxRaces {
				return nil
			}
			return w.nap(ctx)
		}
		w.hurried = 0
		w.note(ctx, held)
		w.remains = held.Remaining
		// Of several processes not all at once.
		timer := time.NewTimer(min(pause.Jitter(lookAgain, 5), max(0, held.Remaining)+pause.Jitter(5*time.Millisecond, 1)))
		select {
		case <-w.sub.rung:
			timer.Stop()
			return nil
		case <-timer.C: // look
		case <-moved:
			timer.Stop()
		case <-down:
			timer.Stop()
			return w.nap(ctx)
		case <-ctx.Done():
			timer.Stop()
			return w.ended(ctx)
		case <-w.c.closed:
			timer.Stop()
			return w.ended(ctx)
		}
	}
}

// nap is the pause between two polls.
func (w *waiter) nap(ctx context.Context) error {
	nap := pause.Jitter(max(w.pause, time.Millisecond), 2)
	w.pause = min(w.pause*3/2, w.c.set.pollInterval)
	if w.remains >= 0 && w.remains < nap {
		// Not before it is over, and not all waiters at once.
		nap = w.remains + pause.Jitter(5*time.Millisecond, 1)
	}
	if !w.c.pause(ctx, nap) {
		return w.ended(ctx)
	}
	return nil
}

// ended is the error of a wait that was ended between two tries.
func (w *waiter) ended(ctx context.Context) error {
	last := w.last
	if held := w.place.noted(); last == nil && held != nil {
		last = held
	}
	switch {
	case ctx.Err() == nil && last == nil:
		return guard.Unavailable("acquire", w.r.claim(), errClientClosed)
	case ctx.Err() == nil:
		return fmt.Errorf("%w; before that: %w", guard.Unavailable("acquire", w.r.claim(), errClientClosed), last)
	case last == nil: // in line behind others that have no answer yet
		return guard.Unavailable("acquire", w.r.claim(), context.Cause(ctx))
	}
	return fmt.Errorf("fencepost: waiting for %q: %w: %w", w.r.resource, context.Cause(ctx), last)
}
