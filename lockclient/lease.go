package lockclient

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/input"
	"github.com/fencepost-go/fencepost/lockclient/internal/pause"
)

// driftShare is the part of a TTL that the holder gives up for the drift
// between two clocks: a thousandth. NTP slews at half of that.
const driftShare = 1000

// deadline is the moment up to which a holder may rely on a grant of ttl. It
// counts from before the request was sent, since the server counts from later,
// and is early by the drift.
func deadline(from, ttl time.Duration) time.Duration {
	// Rounded up, so that a short TTL has a margin too.
	return from + ttl - (ttl+driftShare-1)/driftShare
}

// Lease is a granted lease. It is held until its holder releases it, its
// deadline passes without a renewal, or the issuer no longer has it; whichever
// comes first is final. It is safe for concurrent use.
//
// Valid, Remaining, Done and Err use the holder's own clock and are a
// convenience (P7): a process can be paused between asking and writing. What
// keeps a stale holder from writing is the token, compared at the resource.
type Lease struct {
	client     *Client
	claim      guard.Claim
	acquiredAt time.Time
	values     context.Context // of the acquire
	ttl        time.Duration
	granted    time.Duration // by the client's clock
	reclaimed  bool          // the previous lease had run out
	spend      bool          // its release invalidates the lease ID
	done       chan struct{}

	mu       sync.Mutex
	deadline time.Duration // by the client's clock
	err      error         // why it ended; nil while held
	failed   error         // the last renewal's failure since one succeeded
	onEnd    []func(error)

	interval time.Duration // between renewals, once they begin
	every    time.Duration // between renewals; 0 if it is not kept
	renewAt  time.Duration // the next one
	renewing bool          // one is under way
	failures int           // in a row
	warned   bool          // of a low margin

	next  time.Duration // when the keeper looks, guarded by its mutex
	place int           // in its heap; -1 if in none

	releasing sync.Mutex // one release at a time: each returns what it found
	freed     bool       // one got its response
}

var _ guard.Lease = (*Lease)(nil)

func newLease(ctx context.Context, c *Client, r *request, claim guard.Claim, g driver.Grant, ttl, until, now time.Duration) *Lease {
	l := &Lease{
		client: c, claim: claim, values: context.WithoutCancel(ctx), acquiredAt: g.AcquiredAt, reclaimed: g.Reclaimed, ttl: ttl,
		interval: min(r.interval, ttl/3), spend: r.lost || r.given,
		granted: now, deadline: until, done: make(chan struct{}), place: -1,
	}
	c.keeper.watch(l, until)
	return l
}

// Claim returns what the holder presents to the resources it writes to.
func (l *Lease) Claim() guard.Claim { return l.claim }

// Resource returns the name of the leased resource.
func (l *Lease) Resource() string { return l.claim.Resource }

// Token returns the fencing token. Renewals keep it.
func (l *Lease) Token() guard.Token { return l.claim.Token }

// ID returns the lease ID.
func (l *Lease) ID() string { return l.claim.LeaseID }

// Owner returns the owner's name as given to [New].
func (l *Lease) Owner() string { return l.client.owner }

// TTL returns how long a grant or renewal lasts at the issuer.
func (l *Lease) TTL() time.Duration { return l.ttl }

// AcquiredAt returns when the lease was granted, by the issuer's clock.
func (l *Lease) AcquiredAt() time.Time { return l.acquiredAt }

// Valid reports whether the lease is held. It reads the clock at each call.
func (l *Lease) Valid() bool { return l.Err() == nil }

// Remaining returns how long the lease may be relied on without a renewal; 0
// once it has ended.
func (l *Lease) Remaining() time.Duration {
	if l.Err() != nil {
		return 0
	}
	return max(0, l.currentDeadline()-l.client.clock())
}

// Done returns a channel that is closed when the lease has ended. Timers stop
// while a machine is suspended; it is closed within a second after that.
func (l *Lease) Done() <-chan struct{} { return l.done }

// Err returns nil while the lease is held, then why it ended: a [*LostError]
// ([ErrLeaseLost]) or [ErrReleased]. It reads the clock at each call.
func (l *Lease) Err() error {
	l.mu.Lock()
	err, over, failed, cause := l.err, l.deadline <= l.client.clock(), l.failed, errDeadline
	if l.every == 0 {
		cause = errUnkept
	}
	l.mu.Unlock()
	if err != nil || !over {
		return err
	}
	l.end(&LostError{Claim: l.claim, Cause: cause, LastRenewal: failed})
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

func (l *Lease) currentDeadline() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.deadline
}

// extend moves the deadline after a renewal, unless it had passed before the
// response came: a lease that was over for its holder stays over.
func (l *Lease) extend(until time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil && l.client.clock() < l.deadline {
		l.deadline = max(l.deadline, until)
		l.failed = nil
	}
}

// ended reports whether the lease has been ended; one whose deadline has passed has not
// been yet.
func (l *Lease) ended() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err != nil
}

// end makes err final, wakes those that wait, and reports it afterwards; false if the
// lease had ended.
func (l *Lease) end(err error) bool {
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		return false
	}
	l.err = err
	onEnd := l.onEnd
	close(l.done)
	l.mu.Unlock()
	l.client.keeper.forget(l)
	for _, f := range onEnd {
		f(err)
	}
	if err != ErrReleased {
		l.client.lost(l, err)
	}
	return true
}

// Context returns a context that ends when ctx ends and when the lease does: its cause is
// then [Lease.Err], which is [ErrLeaseLost] or [ErrReleased]. It carries the lease
// ([guard.WithLease]), so that the fences find the claim. Nothing has to be cancelled: a
// lease ends at the latest at its deadline.
//
// The context is only as good as the machine's timers, as [Lease.Done] is. [Lease.Valid]
// reads the clock.
func (l *Lease) Context(ctx context.Context) context.Context {
	held, cancel := context.WithCancelCause(guard.WithLease(ctx, l))
	l.whenEnded(cancel)
	return held
}

// whenEnded calls f with Err when the lease ends, at once if it has ended.
func (l *Lease) whenEnded(f func(error)) {
	l.mu.Lock()
	err := l.err
	if err == nil {
		l.onEnd = append(l.onEnd, f)
	}
	l.mu.Unlock()
	if err != nil {
		f(err)
	}
}

// age is how long the lease has been held.
func (l *Lease) age() time.Duration { return l.client.clock() - l.granted }

// KeepAlive makes the client renew the lease at the given interval until it ends.
//
// 0 means AcquireOptions.RenewInterval; more than a third of the TTL is refused. Failed
// renewals are repeated until the deadline; Done, Err and [Lease.Context] say when the
// lease has ended. It keeps no goroutine, and cannot be undone: release the lease.
//
// Errors: guard.ErrInvalid, [Lease.Err] if the lease has ended, and [ErrClosed] with
// guard.ErrSetup.
func (l *Lease) KeepAlive(every time.Duration) error {
	return cmp.Or(l.keepAlive(every), l.Err())
}

func (l *Lease) keepAlive(every time.Duration) error {
	every = cmp.Or(every, l.interval)
	if err := input.Between("every", every, time.Millisecond, l.ttl/3); err != nil {
		return err
	}
	if l.client.open.Err() != nil {
		return guard.Setup("keep alive", l.claim, ErrClosed)
	}
	l.mu.Lock()
	l.every, l.renewAt = every, l.client.clock()+pause.Jitter(every, 5)
	next := l.nextLook()
	l.mu.Unlock()
	l.client.keeper.watch(l, next)
	return nil
}

// nextLook returns when the keeper has something to do; l.mu is held.
func (l *Lease) nextLook() time.Duration {
	if l.every > 0 && !l.renewing {
		return min(l.renewAt, l.deadline)
	}
	return l.deadline
}

// dueBy reports whether a renewal is due by until, and then counts it as sent;
// the deadline; and when to look again. None is due of a closed keeper.
func (l *Lease) dueBy(until time.Duration, closed bool) (renew bool, deadline, look time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if closed {
		return false, l.deadline, l.deadline
	}
	renew = l.every > 0 && !l.renewing && l.renewAt <= until && l.err == nil
	l.renewing = l.renewing || renew
	return renew, l.deadline, l.nextLook()
}

// kept is the time between renewals; 0 if it is not renewed.
func (l *Lease) kept() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.every
}

// urgency sorts renewals into those that failed before, 0, and the others.
func (l *Lease) urgency() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failures > 0 {
		return 0
	}
	return 1
}

// renewTimeout is at most half the time left, so that another attempt fits
// before the deadline.
func (l *Lease) renewTimeout() time.Duration {
	left := l.Remaining()
	return min(l.client.set.OpTimeout, max(left/2, min(left, MinTTL/4)))
}

// Renew extends the lease to its TTL from now. [Client.Hold] and [Lease.KeepAlive] do this
// by themselves.
//
// The new deadline counts from before the request was sent. An attempt whose response is
// lost is repeated, which is harmless, until ctx ends, the lease's deadline passes or
// Options.OpTimeout has passed.
//
// Errors:
//   - ErrLeaseLost, ErrReleased: final. A renewal never brings a lease back.
//   - guard.ErrUnavailable: not renewed.
//   - guard.ErrOutcomeUnknown: perhaps renewed. After these two the lease is held up to the
//     deadline that it had, and Renew may be called again.
func (l *Lease) Renew(ctx context.Context) error {
	if err := l.Err(); err != nil {
		return err
	}
	if err := l.client.usable(ctx); err != nil {
		return unusable("renew", l.claim, err)
	}
	began := l.client.clock()
	var lost error // the first attempt whose response was lost
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
		if l.client.clock()-began >= l.client.set.OpTimeout || !l.client.pause(ctx, min(pause.Backoff(attempt, pause.Last), l.Remaining())) {
			return pause.WithCause(ctx, lost)
		}
	}
}

func (l *Lease) renewOnce(ctx context.Context) error {
	began := l.client.clock()
	timeout := l.renewTimeout()
	if timeout <= 0 {
		return guard.Unavailable("renew", l.claim, errDeadline)
	}
	// The wait for a connection counts too: it uses up the lease just as well.
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	results := make([]driver.Renewed, 1)
	l.client.issuer.Renew(bounded, []driver.Renewal{{Claim: l.claim, TTL: l.ttl}}, results)
	if err := results[0].Err; err != nil && ctx.Err() == nil && bounded.Err() != nil {
		results[0].Err = fmt.Errorf("no response within %v: %w", timeout.Round(time.Millisecond), err)
	}
	l.renewed(results[0], began)
	if results[0].State == driver.Unknown {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.failed
	}
	return l.Err()
}

// Release gives the lease back. It may be deferred with any context: it uses only the
// values of ctx, and Options.OpTimeout bounds it.
//
// From the first call on the lease has ended for its holder, whatever becomes of the
// request: Valid is false, Done is closed, and Err is [ErrReleased] unless the lease
// was lost before. A release frees no successor's lease, however late or often it arrives,
// and an attempt to acquire that the network delayed is not granted after it. A lease ID
// that you chose is not granted again for an hour.
//
// If the issuer has freed the lease before, Release returns nil. It asks even if the lease was
// lost by its deadline, since the issuer may still have it. Its errors are:
//   - ErrLeaseLost: its holder believed that it had the lease, and the issuer did not.
//   - guard.ErrUnavailable, guard.ErrOutcomeUnknown: the lease may still be there, at most
//     for its TTL. Release may be called again.
func (l *Lease) Release(ctx context.Context) error {
	return l.release(ctx, l.endReleased())
}

// endReleased ends the lease on its holder's side; false if it had ended.
func (l *Lease) endReleased() bool {
	return l.Err() == nil && l.end(ErrReleased) // Err reads the clock: what has run out was lost, not released
}

// release sends the release. wasHeld says that the lease was held until now, so
// that it was lost if the issuer does not have it.
func (l *Lease) release(ctx context.Context, wasHeld bool) error {
	if l.client.work.Begin() {
		defer l.client.work.End()
	}
	l.releasing.Lock()
	defer l.releasing.Unlock()
	if l.freed {
		return nil
	}
	claim := l.claim
	if l.spend {
		claim.Token = guard.NoToken
	}
	ctx = context.WithoutCancel(ctx)
	bounded, cancel := context.WithTimeout(ctx, l.client.set.OpTimeout)
	defer cancel()
	found, err := l.client.free(bounded, claim, false)
	if err == nil {
		l.freed = true
		switch {
		case found == notFound && wasHeld:
			err = &LostError{Claim: l.claim, Cause: l.client.why(ctx, l.claim, whyTimeout)}
			l.client.lost(l, err)
			return err
		case found == notFound && errors.Is(l.Err(), ErrLeaseLost):
			return nil // reported as lost already
		}
	}
	l.client.released(ctx, l, err)
	return err
}

// found is what a release found at the issuer.
type found uint8

const (
	freedNow    found = iota // the lease, and freed it
	freedBefore              // nothing, perhaps because an earlier attempt freed it
	notFound                 // nothing, at the first attempt
)

// free sends releases until one gets a response or ctx ends. If the issuer cannot
// be reached, free returns at once, unless patient is set.
func (c *Client) free(ctx context.Context, claim guard.Claim, patient bool) (found, error) {
	var lost error // the first attempt whose response was lost
	longest := pause.Last
	if patient {
		longest = maxBackoff
	}
	for attempt := 0; ; attempt++ {
		bounded, cancel := context.WithTimeout(ctx, c.set.OpTimeout)
		freed, err := c.issuer.Release(bounded, claim)
		cancel()
		switch {
		case err == nil && freed:
			return freedNow, nil
		case err == nil && lost != nil:
			return freedBefore, nil
		case err == nil:
			return notFound, nil
		case errors.Is(err, guard.ErrOutcomeUnknown) && lost == nil:
			lost = err
		}
		if lost == nil && !errors.Is(err, driver.ErrBusy) && !patient || !pause.For(ctx, pause.Backoff(attempt, longest), nil) {
			if lost != nil {
				err = lost
			}
			return 0, pause.WithCause(ctx, err)
		}
	}
}

// whyTimeout bounds the query for why a lease is lost: ending the lease soon
// matters more than the response.
const whyTimeout = time.Second

// why returns why the issuer does not have the lease, if it responds in time.
func (c *Client) why(ctx context.Context, claim guard.Claim, within time.Duration) error {
	if e, ok := c.issuer.(driver.Explainer); ok {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(within, whyTimeout))
		defer cancel()
		if err := e.Why(ctx, claim); err != nil {
			return err
		}
	}
	return errGone
}
