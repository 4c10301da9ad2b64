package lockclient

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/pause"
)

// Hold waits for the lease on resource as [Client.Acquire] does, runs fn while
// renewing it, and releases it when fn has returned, panicked or ended its
// goroutine. Leader election is Hold in a loop.
//
// The context that fn gets carries the lease ([guard.WithLease]), so that the
// fences further down find the claim. It ends when ctx ends and when the lease
// is lost, then with a cause that is [ErrLeaseLost]; fn should return soon
// after. One failed renewal is no loss: it is repeated until the deadline. The
// lease is renewed until fn returns, even if ctx has ended. The event
// lock_margin_low says that the TTL is too short for what renewals take; see
// [RecommendTTL].
//
// Hold returns fn's error. If the lease was lost before fn returned, the error
// wraps [ErrLeaseLost] and fn's error, if any: fn may have gone on beside the
// next holder, and it depends on the fences whether what it did since has
// counted. If the lease was not granted, fn is not called and the error is
// Acquire's. A release that fails is logged and observed, no error: the TTL
// frees the lease. When Hold returns, its goroutines have ended.
func (c *Client) Hold(ctx context.Context, resource string, opts *HoldOptions, fn func(ctx context.Context) error) (err error) {
	acquire, every, err := opts.validate()
	if err != nil {
		return err
	}
	if fn == nil {
		return guard.Invalid("fn", "nil", "must not be nil")
	}
	lease, err := c.Acquire(ctx, resource, acquire)
	if err != nil {
		return err
	}
	held, cancel := context.WithCancelCause(guard.WithLease(ctx, lease))
	lease.whenEnded(cancel)
	lease.mu.Lock()
	lease.kept = true
	lease.mu.Unlock()
	stop := lease.keepInBackground(ctx, every)

	// Deferred and without recover: a panic or runtime.Goexit in fn goes on by
	// itself, with its own stack, once the lease is released.
	returned := false
	defer func() {
		wasHeld := lease.endReleased() // ends held, before anybody else can be granted
		stop()
		lost := lease.release(ctx, wasHeld)
		if !wasHeld {
			lost = lease.Err()
		}
		if returned {
			err = outcome(err, lost)
		}
	}()
	err = fn(held)
	returned = true
	return err
}

// outcome puts fn's error and the loss of the lease together.
func outcome(err, lost error) error {
	switch {
	case !errors.Is(lost, ErrLeaseLost):
		return err
	case err == nil:
		return lost
	}
	return fmt.Errorf("%w; the work: %w", lost, err)
}

// keepInBackground renews the lease until the returned function is called,
// which waits for the end of a renewal that is under way.
func (l *Lease) keepInBackground(ctx context.Context, every time.Duration) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	next := l.client.clock() + pause.Jitter(every, 5) // from now, whenever the goroutine starts
	go func() {
		defer close(done)
		l.keep(ctx, next, every)
	}()
	return func() {
		cancel()
		<-done
	}
}
