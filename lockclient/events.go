package lockclient

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/input"
)

// events reports to the logger and the observer, which may be nil.
type events struct {
	c *Client

	mu      sync.Mutex
	trouble map[string]*trouble // by the event's name
	failing int                 // how many leases could not be renewed the last time
}

// trouble is what was logged of one kind of failure.
type trouble struct {
	lasts      bool          // the last attempt of this kind failed
	told       time.Duration // when, by the client's clock
	suppressed int64         // since then
	latest     warning       // the last of those
	timer      *time.Timer   // calls tell; nil unless some are suppressed
}

const (
	// tellAgain is how often a lasting failure is logged, and tellNews how
	// often an intermittent one, or the loss of leases.
	tellAgain, tellNews = time.Minute, time.Second
)

func (e *events) observe(ctx context.Context, op guard.Op, claim guard.Claim, took time.Duration, err error) {
	if o := e.c.set.Observer; o != nil {
		o.Observe(ctx, guard.Event{
			Op: op, Surface: guard.SurfaceLock, Claim: claim, Reason: guard.ReasonOf(err), Duration: took, Err: err,
		})
	}
}

func (e *events) log(ctx context.Context, level slog.Level, name string, claim guard.Claim, ttl time.Duration, more ...slog.Attr) {
	logger := input.Logger(e.c.set.Logger, level)
	if logger == nil || !logger.Enabled(ctx, level) {
		return
	}
	attrs := make([]slog.Attr, 0, 9)
	attrs = append(attrs,
		slog.String("resource", claim.Resource),
		slog.String("ownerId", e.c.owner),
		slog.String("leaseId", claim.LeaseID),
		// A string, because many readers of JSON lose digits of such numbers.
		slog.String("fencingToken", claim.Token.String()))
	if ttl > 0 {
		attrs = append(attrs, slog.Float64("ttlSeconds", ttl.Seconds()))
	}
	logger.LogAttrs(ctx, level, name, append(attrs, more...)...)
}

// warning is what is logged of a failure.
type warning struct {
	name  string
	claim guard.Claim
	ttl   time.Duration
	more  []slog.Attr
}

// failed logs a failure when it is new, and once a minute while it lasts, with
// how many were left out since. The last of those is logged in any case.
func (e *events) failed(ctx context.Context, name string, claim guard.Claim, ttl time.Duration, more ...slog.Attr) {
	if logger := input.Logger(e.c.set.Logger, slog.LevelWarn); logger == nil || !logger.Enabled(ctx, slog.LevelWarn) {
		return
	}
	e.mu.Lock()
	t, now := e.trouble[name], e.c.clock()
	pause := tellAgain
	if t == nil {
		t = &trouble{told: now - tellAgain}
		e.trouble[name] = t
	}
	if !t.lasts || name == lockLost {
		pause = tellNews
	}
	t.lasts = true
	if wait := t.told + pause - now; wait > 0 {
		t.suppressed++
		t.latest = warning{name, claim, ttl, append(t.latest.more[:0], more...)}
		if t.timer == nil {
			t.timer = time.AfterFunc(wait, func() { e.tell(t) })
		}
		e.mu.Unlock()
		return
	}
	others, _ := e.end(t)
	e.mu.Unlock()
	e.warn(ctx, name, claim, ttl, more, others)
}

func (e *events) warn(ctx context.Context, name string, claim guard.Claim, ttl time.Duration, more []slog.Attr, suppressed int64) {
	if suppressed > 0 {
		more = append(more, slog.Int64("suppressed", suppressed))
	}
	e.log(ctx, slog.LevelWarn, name, claim, ttl, more...)
}

// end takes what was left out; e.mu is held.
func (e *events) end(t *trouble) (suppressed int64, latest warning) {
	if t.timer != nil {
		t.timer.Stop()
	}
	suppressed, latest = t.suppressed, t.latest
	t.told, t.suppressed, t.latest, t.timer = e.c.clock(), 0, warning{}, nil
	return suppressed, latest
}

// tell logs the last failure that was left out, with how many were besides.
func (e *events) tell(t *trouble) {
	e.mu.Lock()
	if t.suppressed == 0 {
		e.mu.Unlock()
		return
	}
	suppressed, latest := e.end(t)
	e.mu.Unlock()
	e.warn(context.Background(), latest.name, latest.claim, latest.ttl, latest.more, suppressed-1)
}

// close logs what was left out.
func (e *events) close() {
	e.mu.Lock()
	all := slices.Collect(maps.Values(e.trouble))
	e.mu.Unlock()
	for _, t := range all {
		e.tell(t)
	}
}

// passed records that an operation that had failed works again.
func (e *events) passed(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if t := e.trouble[name]; t != nil {
		t.lasts = false
	}
}

// renewable records whether a lease could be renewed. The failure lasts as long as
// there is one that could not.
func (e *events) renewable(l *Lease, is bool) {
	e.mu.Lock()
	if l.failing == is {
		l.failing = !is
		if is {
			e.failing--
		} else {
			e.failing++
		}
	}
	none := e.failing == 0
	e.mu.Unlock()
	if none {
		e.passed(renewFailed)
	}
}

func seconds(key string, d time.Duration) slog.Attr { return slog.Float64(key, d.Seconds()) }

// because leaves the formatting, which is expensive, to the handler.
func because(err error) slog.Attr { return slog.Any("error", err) }

const (
	acquireFailed = "lock_acquire_failed"
	renewFailed   = "lock_renew_failed"
	releaseFailed = "lock_release_failed"
	marginLow     = "lock_margin_low"
	lockLost      = "lock_lost"
)

// acquired reports the outcome of a whole TryAcquire or Acquire.
func (c *Client) acquired(ctx context.Context, r *request, l *Lease, err error, took time.Duration) {
	claim := r.Claim()
	held, isHeld := err.(*HeldError)
	switch {
	case err == nil:
		claim = l.claim
		c.events.passed(acquireFailed)
		if l.reclaimed {
			c.events.observe(ctx, guard.OpReclaim, claim, took, nil)
		}
		c.events.log(ctx, slog.LevelInfo, "lock_acquired", claim, r.TTL, seconds("waitedSeconds", took))
	case isHeld: // not the end of a wait, which was reported as contended when it began
		c.events.contended(ctx, r, held)
	default:
		c.events.failed(ctx, acquireFailed, claim, r.TTL, because(err))
	}
	c.events.observe(ctx, guard.OpAcquire, claim, took, err)
}

func (e *events) contended(ctx context.Context, r *request, held *HeldError) {
	e.log(ctx, slog.LevelInfo, "lock_contended", r.Claim(), r.TTL,
		slog.String("holderId", held.Owner), slog.String("holderToken", held.Token.String()),
		seconds("remainingSeconds", held.Remaining))
	e.observe(ctx, guard.OpContend, r.Claim(), 0, held)
}

func (e *events) renewed(ctx context.Context, l *Lease, err error, took time.Duration) {
	switch {
	case err == nil:
		e.renewable(l, true)
		e.log(ctx, slog.LevelDebug, "lock_renewed", l.claim, l.ttl, seconds("renewalSeconds", took))
	case errors.Is(l.Err(), ErrReleased):
		return // it no longer matters
	default:
		e.renewable(l, l.Err() != nil)
		e.failed(ctx, renewFailed, l.claim, l.ttl, because(err))
	}
	e.observe(ctx, guard.OpRenew, l.claim, took, err)
}

// marginLow warns before it is too late: with a little more delay a healthy
// holder loses its lease.
func (e *events) marginLow(ctx context.Context, l *Lease, took, left time.Duration) {
	p99 := l.client.renewal.read().P99
	e.failed(ctx, marginLow, l.claim, l.ttl,
		seconds("remainingSeconds", left), seconds("renewalSeconds", took), seconds("renewalP99Seconds", p99))
}

func (e *events) released(ctx context.Context, l *Lease, err error) {
	e.renewable(l, true)
	age := l.age()
	if err == nil {
		e.passed(releaseFailed)
		e.log(ctx, slog.LevelInfo, "lock_released", l.claim, l.ttl, seconds("heldSeconds", age))
	} else {
		e.failed(ctx, releaseFailed, l.claim, l.ttl, because(err))
	}
	e.observe(ctx, guard.OpRelease, l.claim, age, err)
}

// releaseFailed reports a grant that nobody got and that may still be there.
func (e *events) releaseFailed(ctx context.Context, claim guard.Claim, err error) {
	e.failed(ctx, releaseFailed, claim, 0, because(err))
	e.observe(ctx, guard.OpRelease, claim, 0, err)
}

func (e *events) lost(ctx context.Context, l *Lease, err error) {
	e.renewable(l, true)
	age := l.age()
	e.failed(ctx, lockLost, l.claim, l.ttl, seconds("heldSeconds", age), because(err))
	e.observe(ctx, guard.OpLost, l.claim, age, err)
}
