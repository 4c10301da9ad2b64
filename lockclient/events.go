package lockclient

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/input"
)

func (c *Client) observe(ctx context.Context, op guard.Op, claim guard.Claim, took time.Duration, err error) {
	if o := c.set.Observer; o != nil {
		o.Observe(ctx, guard.Event{
			Op: op, Surface: guard.SurfaceLock, Claim: claim, Reason: guard.ReasonOf(err), Duration: took, Err: err,
		})
	}
}

func (c *Client) log(ctx context.Context, level slog.Level, name string, claim guard.Claim, ttl time.Duration, more ...slog.Attr) {
	logger := input.Logger(c.set.Logger, level)
	if logger == nil || !logger.Enabled(ctx, level) {
		return
	}
	attrs := make([]slog.Attr, 0, 9)
	attrs = append(attrs,
		slog.String("resource", claim.Resource),
		slog.String("ownerId", c.owner),
		slog.String("leaseId", claim.LeaseID),
		// A string, because many readers of JSON lose digits of such numbers.
		slog.String("fencingToken", claim.Token.String()))
	if ttl > 0 {
		attrs = append(attrs, slog.Float64("ttlSeconds", ttl.Seconds()))
	}
	logger.LogAttrs(ctx, level, name, append(attrs, more...)...)
}

func seconds(key string, d time.Duration) slog.Attr { return slog.Float64(key, d.Seconds()) }

// because leaves the formatting, which is expensive, to the handler.
func because(err error) slog.Attr { return slog.Any("error", err) }

// acquired reports the outcome of a whole TryAcquire or Acquire.
func (c *Client) acquired(ctx context.Context, r *request, l *Lease, err error, took time.Duration) {
	claim := r.Claim()
	held, isHeld := err.(*HeldError)
	switch {
	case err == nil:
		claim = l.claim
		if l.reclaimed {
			c.observe(ctx, guard.OpReclaim, claim, took, nil)
		}
		c.log(ctx, slog.LevelInfo, "lock_acquired", claim, r.TTL, seconds("waitedSeconds", took))
	case isHeld: // not the end of a wait, which was reported as contended when it began
		c.contended(ctx, r, held)
	default:
		c.log(ctx, slog.LevelWarn, "lock_acquire_failed", claim, r.TTL, because(err))
	}
	c.observe(ctx, guard.OpAcquire, claim, took, err)
}

func (c *Client) contended(ctx context.Context, r *request, held *HeldError) {
	c.log(ctx, slog.LevelInfo, "lock_contended", r.Claim(), r.TTL,
		slog.String("holderId", held.Owner), slog.String("holderToken", held.Token.String()),
		seconds("remainingSeconds", held.Remaining))
	c.observe(ctx, guard.OpContend, r.Claim(), 0, held)
}

// renewed reports a renewal. Of the failures in a row only the first is logged, since
// they are repeated ever faster until the deadline.
func (c *Client) renewed(ctx context.Context, l *Lease, err error, took time.Duration, failures int) {
	switch {
	case err == nil:
		c.log(ctx, slog.LevelDebug, "lock_renewed", l.claim, l.ttl, seconds("renewalSeconds", took))
	case errors.Is(l.Err(), ErrReleased):
		return // it no longer matters
	case failures == 1:
		c.log(ctx, slog.LevelWarn, "lock_renew_failed", l.claim, l.ttl, because(err))
	}
	c.observe(ctx, guard.OpRenew, l.claim, took, err)
}

// marginLow warns before it is too late: with a little more delay a healthy
// holder loses its lease.
func (c *Client) marginLow(ctx context.Context, l *Lease, took, left time.Duration) {
	p99 := c.renewal.read().P99
	c.log(ctx, slog.LevelWarn, "lock_margin_low", l.claim, l.ttl,
		seconds("remainingSeconds", left), seconds("renewalSeconds", took), seconds("renewalP99Seconds", p99))
}

func (c *Client) released(ctx context.Context, l *Lease, err error) {
	age := l.age()
	if err == nil {
		c.log(ctx, slog.LevelInfo, "lock_released", l.claim, l.ttl, seconds("heldSeconds", age))
	} else {
		c.log(ctx, slog.LevelWarn, "lock_release_failed", l.claim, l.ttl, because(err))
	}
	c.observe(ctx, guard.OpRelease, l.claim, age, err)
}

// releaseFailed reports a grant that nobody got and that may still be there.
func (c *Client) releaseFailed(ctx context.Context, claim guard.Claim, err error) {
	c.log(ctx, slog.LevelWarn, "lock_release_failed", claim, 0, because(err))
	c.observe(ctx, guard.OpRelease, claim, 0, err)
}

func (c *Client) lost(ctx context.Context, l *Lease, err error) {
	age := l.age()
	c.log(ctx, slog.LevelWarn, "lock_lost", l.claim, l.ttl, seconds("heldSeconds", age), because(err))
	c.observe(ctx, guard.OpLost, l.claim, age, err)
}
