package lockclient

import (
	"context"
	"errors"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/pause"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"
)

// Release gives the lease back. From its first call the lease has ended for its
// holder, whatever becomes of the request: Valid is false, Done is closed, Err
// is [ErrReleased] unless the lease was lost before.
//
// It compares the lease ID and the token, so however late or often it arrives
// it never frees a successor's lease. It does not end with ctx, of which it
// takes only the values, so it may be deferred with the caller's context;
// Options.ReleaseTimeout bounds it, and within that it repeats what was lost.
//
// Errors: guard.ErrUnavailable and guard.ErrOutcomeUnknown (the lease may
// still be there, at most until its TTL has passed; Release may be called
// again), and [ErrLeaseLost] if the holder believed that it held the lease and
// the server did not have it any more. Released before, or lost before, is nil.
func (l *Lease) Release(ctx context.Context) error {
	return l.release(ctx, l.endReleased())
}

// endReleased ends the lease on its holder's side; false if it had ended.
func (l *Lease) endReleased() bool {
	if l.Err() != nil { // reads the clock: what has run out was lost, not released
		return false
	}
	return l.end(ErrReleased)
}

// release sends the release. wasHeld says that the lease was good until now, so
// that the server not having it means a loss.
func (l *Lease) release(ctx context.Context, wasHeld bool) error {
	l.releasing.Lock()
	defer l.releasing.Unlock()
	if l.freed {
		return nil
	}
	found, err := l.client.free(context.WithoutCancel(ctx), l.claim, false)
	if err == nil {
		l.freed = true
		switch {
		case found == gone && wasHeld:
			err = &LostError{Claim: l.claim, Cause: l.client.gone(ctx, l.claim, whyTimeout)}
			l.client.events.lost(ctx, l, err)
			return err
		case found == gone && errors.Is(l.Err(), ErrLeaseLost):
			return nil // told as lost already
		}
	}
	l.client.events.released(ctx, l, err)
	return err
}

// found is what a release found on the server.
type found uint8

const (
	freedNow    found = iota // the lease, and freed it
	freedBefore              // nothing, perhaps since an attempt before did it
	gone                     // nothing, at the first attempt
)

// free sends releases until one is answered, within releaseTimeout. A server
// that cannot be reached ends it, so that nobody waits in vain, unless nobody
// waits: the patient go on until the client is closed. ctx must not end.
func (c *Client) free(ctx context.Context, claim guard.Claim, patient bool) (found, error) {
	ctx, cancel := context.WithTimeout(ctx, c.set.releaseTimeout)
	defer cancel()
	var lost error // the first attempt whose answer was lost
	for attempt := 0; ; attempt++ {
		freed, err := c.issuer.release(ctx, claim, min(c.set.opTimeout, c.set.releaseTimeout))
		switch {
		case err == nil && freed:
			return freedNow, nil
		case err == nil && lost != nil:
			return freedBefore, nil
		case err == nil:
			return gone, nil
		case errors.Is(err, guard.ErrOutcomeUnknown) && lost == nil:
			lost = err
		}
		var closed <-chan struct{}
		if lost == nil && !pglease.Contention(err) {
			if !patient {
				return 0, err
			}
			closed = c.closed
		}
		if !pause.For(ctx, pause.Backoff(attempt), closed) {
			if lost != nil {
				err = lost
			}
			return 0, pause.WithCause(ctx, err)
		}
	}
}
