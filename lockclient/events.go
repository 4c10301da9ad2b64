package lockclient

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// surface is this package's name in observations.
const surface = "lock"

// events tells the logger and the observer, which may be nil, and counts.
type events struct {
	logger   *slog.Logger
	observer guard.Observer
	stats    *stats // set by newClient
}

func (e events) observe(ctx context.Context, op guard.Op, claim guard.Claim, took time.Duration, err error) {
	if e.observer != nil {
		e.observer.Observe(ctx, guard.Event{
			Op: op, Surface: surface, Claim: claim, Reason: guard.ReasonOf(err), Duration: took, Err: err,
		})
	}
}

func (e events) log(ctx context.Context, level slog.Level, name, owner string, claim guard.Claim, ttl time.Duration, more ...slog.Attr) {
	if e.logger == nil || !e.logger.Enabled(ctx, level) {
		return
	}
	attrs := make([]slog.Attr, 0, 8)
	attrs = append(attrs,
		slog.String("resource", claim.Resource),
		slog.String("ownerId", owner),
		slog.String("leaseId", claim.LeaseID),
		// A string, because many readers of JSON lose digits of such numbers.
		slog.String("fencingToken", claim.Token.String()))
	if ttl > 0 {
		attrs = append(attrs, slog.Float64("ttlSeconds", ttl.Seconds()))
	}
	e.logger.LogAttrs(ctx, level, name, append(attrs, more...)...)
}

// operated tells of what was done to the issuer rather than to a lease.
func (e events) operated(ctx context.Context, level slog.Level, name string, attrs ...slog.Attr) {
	if e.logger != nil {
		e.logger.LogAttrs(ctx, level, name, attrs...)
	}
}

func seconds(key string, d time.Duration) slog.Attr { return slog.Float64(key, d.Seconds()) }

// failed leaves it to the handler to make the text, which costs.
func failed(err error) slog.Attr { return slog.Any("error", err) }

// acquired tells the outcome of a whole TryAcquire or Acquire.
func (c *Client) acquired(ctx context.Context, r request, l *Lease, err error, took time.Duration) {
	claim := r.claim()
	held, isHeld := err.(*HeldError)
	n := c.events.stats.of(r.resource)
	n.attempted.Add(1)
	n.waited.Add(int64(took))
	switch {
	case err == nil:
		claim = l.claim
		n.granted.Add(1)
		if l.reclaimed {
			n.reclaimed.Add(1)
			c.events.observe(ctx, guard.OpReclaim, claim, took, nil)
		}
		c.events.log(ctx, slog.LevelInfo, "lock_acquired", r.owner, claim, r.ttl, seconds("waitedSeconds", took))
	case isHeld: // not the end of a wait, which was told as contended when it began
		c.events.contended(ctx, r, held)
	default:
		c.events.log(ctx, slog.LevelWarn, "lock_acquire_failed", r.owner, claim, r.ttl, failed(err))
	}
	c.events.observe(ctx, guard.OpAcquire, claim, took, err)
}

func (e events) contended(ctx context.Context, r request, held *HeldError) {
	e.stats.of(r.resource).contended.Add(1)
	e.log(ctx, slog.LevelInfo, "lock_contended", r.owner, r.claim(), r.ttl,
		slog.String("holderId", held.Owner), slog.String("holderToken", held.Token.String()),
		seconds("remainingSeconds", held.Remaining))
	e.observe(ctx, guard.OpContend, r.claim(), 0, held)
}

func (e events) renewed(ctx context.Context, l *Lease, err error, took time.Duration) {
	switch {
	case err == nil:
		e.stats.of(l.claim.Resource).renewed.Add(1)
		e.log(ctx, slog.LevelDebug, "lock_renewed", l.Owner(), l.claim, l.ttl, seconds("renewalSeconds", took))
	case errors.Is(l.Err(), ErrReleased):
		return // it no longer matters
	default:
		e.stats.of(l.claim.Resource).renewalsFailed.Add(1)
		e.log(ctx, slog.LevelWarn, "lock_renew_failed", l.Owner(), l.claim, l.ttl, failed(err))
	}
	e.observe(ctx, guard.OpRenew, l.claim, took, err)
}

// marginLow warns before it is too late: a little more, and a healthy holder
// loses its lease.
func (e events) marginLow(ctx context.Context, l *Lease, took, left time.Duration) {
	p99 := l.client.renewal.read().P99
	e.log(ctx, slog.LevelWarn, "lock_margin_low", l.Owner(), l.claim, l.ttl,
		seconds("remainingSeconds", left), seconds("renewalSeconds", took), seconds("renewalP99Seconds", p99))
}

func (e events) released(ctx context.Context, l *Lease, err error) {
	n, age := e.stats.of(l.claim.Resource), l.age()
	if err == nil {
		n.released.Add(1)
		n.held.Add(int64(age))
		e.log(ctx, slog.LevelInfo, "lock_released", l.Owner(), l.claim, l.ttl, seconds("heldSeconds", age))
	} else {
		n.releasesFailed.Add(1)
		e.log(ctx, slog.LevelWarn, "lock_release_failed", l.Owner(), l.claim, l.ttl, failed(err))
	}
	e.observe(ctx, guard.OpRelease, l.claim, age, err)
}

// releaseFailed tells of a grant that was handed to nobody and may still be there.
func (e events) releaseFailed(ctx context.Context, owner string, claim guard.Claim, err error) {
	e.stats.of(claim.Resource).releasesFailed.Add(1)
	e.log(ctx, slog.LevelWarn, "lock_release_failed", owner, claim, 0, failed(err))
	e.observe(ctx, guard.OpRelease, claim, 0, err)
}

func (e events) lost(ctx context.Context, l *Lease, err error) {
	n, age := e.stats.of(l.claim.Resource), l.age()
	n.lost.Add(1)
	if errors.Is(err, ErrForceUnlocked) {
		n.forceUnlocked.Add(1)
	}
	n.held.Add(int64(age))
	e.log(ctx, slog.LevelWarn, "lock_lost", l.Owner(), l.claim, l.ttl, seconds("heldSeconds", age), failed(err))
	e.observe(ctx, guard.OpLost, l.claim, age, err)
}
