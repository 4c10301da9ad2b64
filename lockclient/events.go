package lockclient

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/input"
)

// event is what the logger and the observer get.
type event struct {
	level slog.Level
	name  string   // of the log line; empty for none
	op    guard.Op // for the observer; empty for none
	claim guard.Claim
	ttl   time.Duration // logged if it is not 0
	took  time.Duration // observed
	err   error         // observed
	attrs []slog.Attr
}

// report has an event logged and observed. It does not wait for that: a logger
// that blocks must not keep a holder from learning that its lease is lost.
func (c *Client) report(ctx context.Context, e event) {
	logger := input.Logger(c.set.Logger, e.level)
	if e.name == "" {
		logger = nil
	}
	if logger == nil && (c.set.Observer == nil || e.op == "") {
		return
	}
	c.reports.Add(func() {
		if logger != nil && logger.Enabled(ctx, e.level) {
			logger.LogAttrs(ctx, e.level, e.name, c.attrs(e)...)
		}
		if c.set.Observer != nil && e.op != "" {
			c.set.Observer.Observe(ctx, guard.Event{
				Op: e.op, Surface: guard.SurfaceLock, Claim: e.claim, Reason: guard.ReasonOf(e.err), Duration: e.took, Err: e.err,
			})
		}
	})
}

func (c *Client) attrs(e event) []slog.Attr {
	attrs := append(make([]slog.Attr, 0, 9),
		slog.String("resource", e.claim.Resource),
		slog.String("ownerId", c.owner),
		slog.String("leaseId", e.claim.LeaseID),
		// A string, because many readers of JSON lose digits of such numbers.
		slog.String("fencingToken", e.claim.Token.String()))
	if e.ttl > 0 {
		attrs = append(attrs, seconds("ttlSeconds", e.ttl))
	}
	return append(attrs, e.attrs...)
}

// eventsLost warns of a logger or an observer that was too slow.
func (c *Client) eventsLost(n int) {
	if logger := input.Logger(c.set.Logger, slog.LevelWarn); logger != nil {
		logger.Warn("lock_events_dropped", "ownerId", c.owner, "count", n)
	}
}

func seconds(key string, d time.Duration) slog.Attr { return slog.Float64(key, d.Seconds()) }

// because leaves the formatting, which is expensive, to the handler.
func because(err error) slog.Attr { return slog.Any("error", err) }

// acquired reports the outcome of a whole TryAcquire or Acquire.
func (c *Client) acquired(ctx context.Context, r *request, l *Lease, err error, took time.Duration) {
	e := event{op: guard.OpAcquire, claim: r.Claim(), ttl: r.TTL, took: took, err: err}
	held, isHeld := err.(*HeldError)
	switch {
	case err == nil:
		e.level, e.name, e.claim, e.attrs = slog.LevelInfo, "lock_acquired", l.claim, []slog.Attr{seconds("waitedSeconds", took)}
		if l.reclaimed {
			c.report(ctx, event{op: guard.OpReclaim, claim: l.claim, took: took})
		}
	case isHeld: // not the end of a wait, which was reported as contended when it began
		c.contended(ctx, r, held)
	default:
		e.level, e.name, e.attrs = slog.LevelWarn, "lock_acquire_failed", []slog.Attr{because(err)}
	}
	c.report(ctx, e)
}

func (c *Client) contended(ctx context.Context, r *request, held *HeldError) {
	c.report(ctx, event{
		level: slog.LevelInfo, name: "lock_contended", op: guard.OpContend, claim: r.Claim(), ttl: r.TTL, err: held,
		attrs: []slog.Attr{
			slog.String("holderId", held.Owner), slog.String("holderToken", held.Token.String()),
			seconds("remainingSeconds", held.Remaining)},
	})
}

// retried reports that a wait goes on over a failure.
func (c *Client) retried(ctx context.Context, r *request, err error) {
	c.report(ctx, event{level: slog.LevelWarn, name: "lock_acquire_retried", claim: r.Claim(), ttl: r.TTL, attrs: []slog.Attr{because(err)}})
}

// renewed reports a renewal. Of the failures in a row only the first is logged, since
// they are repeated until the deadline.
func (c *Client) renewed(l *Lease, err error, took time.Duration, failures int) {
	e := event{op: guard.OpRenew, claim: l.claim, ttl: l.ttl, took: took, err: err}
	switch {
	case err == nil:
		e.level, e.name, e.attrs = slog.LevelDebug, "lock_renewed", []slog.Attr{seconds("renewalSeconds", took)}
	case errors.Is(l.Err(), ErrReleased):
		return // it no longer matters
	case failures == 1:
		e.level, e.name, e.attrs = slog.LevelWarn, "lock_renew_failed", []slog.Attr{because(err)}
	}
	c.report(context.Background(), e)
}

// marginLow warns before it is too late: with a little more delay a healthy
// holder loses its lease.
func (c *Client) marginLow(l *Lease, took, left time.Duration) {
	c.report(context.Background(), event{
		level: slog.LevelWarn, name: "lock_margin_low", claim: l.claim, ttl: l.ttl,
		attrs: []slog.Attr{seconds("remainingSeconds", left), seconds("renewalSeconds", took)},
	})
}

func (c *Client) released(ctx context.Context, l *Lease, err error) {
	e := event{level: slog.LevelInfo, name: "lock_released", op: guard.OpRelease, claim: l.claim, ttl: l.ttl, took: l.age(), err: err}
	if err == nil {
		e.attrs = []slog.Attr{seconds("heldSeconds", e.took)}
	} else {
		e.level, e.name, e.attrs = slog.LevelWarn, "lock_release_failed", []slog.Attr{because(err)}
	}
	c.report(ctx, e)
}

// releaseFailed reports a grant that nobody got and that may still be there.
func (c *Client) releaseFailed(ctx context.Context, claim guard.Claim, err error) {
	c.report(ctx, event{level: slog.LevelWarn, name: "lock_release_failed", op: guard.OpRelease, claim: claim, err: err, attrs: []slog.Attr{because(err)}})
}

func (c *Client) lost(l *Lease, err error) {
	age := l.age()
	c.report(context.Background(), event{
		level: slog.LevelWarn, name: "lock_lost", op: guard.OpLost, claim: l.claim, ttl: l.ttl, took: age, err: err,
		attrs: []slog.Attr{seconds("heldSeconds", age), because(err)},
	})
}
