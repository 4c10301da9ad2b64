package lockclient

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/pause"
)

// Renew extends the lease to its TTL from now. [Client.Hold] does this by
// itself. The new deadline counts from before the request was sent. An attempt
// whose answer is lost is repeated, which is harmless, until ctx ends, the
// lease's deadline passes or Options.OpTimeout has passed.
//
// Errors: [ErrLeaseLost] (final: the deadline has passed, or the server no
// longer has the lease; a renewal never brings one back), [ErrReleased],
// guard.ErrUnavailable (not renewed) and guard.ErrOutcomeUnknown (perhaps
// renewed); after the last two the lease is held up to the deadline that it
// had, and Renew may be called again.
func (l *Lease) Renew(ctx context.Context) error {
	if err := l.Err(); err != nil {
		return err
	}
	if err := l.client.usable(ctx); err != nil {
		return guard.Unavailable("renew", l.claim, err)
	}
	began := l.client.clock()
	var lost error // the first attempt whose answer was lost
	for attempt := 0; ; attempt++ {
		err := l.renewOnce(ctx)
		if l.Err() != nil {
			return l.Err() // final, whatever the attempt said
		}
		if errors.Is(err, guard.ErrOutcomeUnknown) && lost == nil {
			lost = err
		}
		if err == nil || lost == nil {
			return pause.WithCause(ctx, err)
		}
		if l.client.clock()-began >= l.client.set.opTimeout || !l.client.pause(ctx, min(pause.Backoff(attempt), l.Remaining())) {
			return pause.WithCause(ctx, lost)
		}
	}
}

// renewOnce is one attempt. It takes at most half of what is left, so that
// another one fits in before the deadline.
func (l *Lease) renewOnce(ctx context.Context) error {
	began := l.client.clock()
	left := l.Remaining()
	timeout := min(l.client.set.opTimeout, max(left/2, min(left, MinTTL/4)))
	l.trySince(began)
	sent, held, err := l.renewal(ctx, timeout)
	answered := l.client.clock()
	switch {
	case err != nil:
		l.mu.Lock()
		l.failed = err
		l.mu.Unlock()
		l.checkMargin(ctx, answered, false)
	case !held:
		l.end(&LostError{Claim: l.claim, Cause: l.client.gone(ctx, l.claim, l.Remaining()/2)})
		err = l.Err()
	default:
		l.checkMargin(ctx, answered, true)
		l.extend(deadline(sent, l.ttl))
		err = l.Err()
	}
	l.client.events.renewed(ctx, l, err, l.client.clock()-began)
	return err
}

func (l *Lease) renewal(ctx context.Context, timeout time.Duration) (time.Duration, bool, error) {
	if timeout <= 0 {
		return 0, false, guard.Unavailable("renew", l.claim, errDeadline)
	}
	// The wait for a connection counts as well: to the lease it is all the same.
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	sent, held, err := l.client.issuer.renew(bounded, l.claim, l.ttl, timeout)
	if err != nil && ctx.Err() == nil && bounded.Err() != nil {
		err = fmt.Errorf("no answer within %v: %w", timeout.Round(time.Millisecond), err)
	}
	return sent, held, err
}

// keep renews the lease at next and every so often until ctx or the lease ends.
// A failed renewal is repeated until the deadline: one failure is no loss.
func (l *Lease) keep(ctx context.Context, next, every time.Duration) {
	for failures := 0; l.sleep(ctx, next); {
		if err := l.renewOnce(ctx); err == nil {
			failures = 0
			next = l.client.clock() + pause.Jitter(every, 5)
			continue
		}
		// Soon enough for several tries before the deadline, and not in a
		// storm: everybody's renewals fail together when the server restarts.
		failures++
		next = l.client.clock() + min(pause.Backoff(failures+2), max(l.Remaining()/4, time.Millisecond))
	}
}

// sleep waits until the clock shows next; false if ctx or the lease ended.
func (l *Lease) sleep(ctx context.Context, next time.Duration) bool {
	for {
		moved := l.client.jumps.moved()
		left := next - l.client.clock()
		if left <= 0 {
			return ctx.Err() == nil && l.Err() == nil
		}
		timer := time.NewTimer(min(left, maxNap))
		select {
		case <-timer.C:
		case <-moved:
			timer.Stop()
		case <-ctx.Done():
			timer.Stop()
			return false
		case <-l.done:
			timer.Stop()
			return false
		}
	}
}
