package lockclient

import (
	"context"
	"sync"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// Lease is a lease that was granted. It is held until its holder releases it,
// its deadline passes without a renewal, or the server no longer has it;
// whichever comes first is final. It is safe for concurrent use.
//
// Valid, Remaining, Done and Err go by the holder's own clock and are a
// courtesy (promise P7): a process can be paused between asking and writing.
// What keeps a stale holder from writing is the token, compared at the resource.
type Lease struct {
	client     *Client
	claim      guard.Claim
	acquiredAt time.Time
	ttl        time.Duration
	granted    time.Duration // by the client's clock
	reclaimed  bool          // the lease before had run out
	done       chan struct{}

	mu       sync.Mutex
	deadline time.Duration // by the client's clock
	err      error         // why it ended; nil while held
	failed   error         // the last renewal's failure since one succeeded
	watchdog *time.Timer
	onEnd    func(error)

	kept     bool          // renewed by Hold
	trying   time.Duration // since when a renewal is tried, by the client's clock; 0 if none is
	low      bool          // the margin was told to be gone
	renewals latencies

	releasing sync.Mutex // one release at a time: each tells what it found
	freed     bool       // one was answered
}

var _ guard.Lease = (*Lease)(nil)

func newLease(c *Client, claim guard.Claim, a answer, ttl, until time.Duration) *Lease {
	l := &Lease{
		client: c, claim: claim, acquiredAt: a.acquiredAt, reclaimed: a.reclaimed, ttl: ttl,
		granted: c.clock(), deadline: until, done: make(chan struct{}),
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watchdog = time.AfterFunc(min(until-l.granted, maxNap), l.watch)
	c.jumps.track(l)
	return l
}

// Claim returns what the holder presents to the resources that it writes.
func (l *Lease) Claim() guard.Claim { return l.claim }

// Resource returns the name of what is leased.
func (l *Lease) Resource() string { return l.claim.Resource }

// Token returns the fencing token. Renewals keep it.
func (l *Lease) Token() guard.Token { return l.claim.Token }

// ID returns the lease ID.
func (l *Lease) ID() string { return l.claim.LeaseID }

// Owner returns the owner's name as given to [New].
func (l *Lease) Owner() string { return l.client.owner }

// TTL returns how long a grant or renewal lasts on the server.
func (l *Lease) TTL() time.Duration { return l.ttl }

// AcquiredAt returns when the lease was granted, by the server's clock.
func (l *Lease) AcquiredAt() time.Time { return l.acquiredAt }

// Valid reports whether the lease is held. It reads the clock at each call.
func (l *Lease) Valid() bool { return l.Err() == nil }

// Remaining returns how long the lease may be relied on without a renewal; 0
// once it has ended.
func (l *Lease) Remaining() time.Duration {
	if l.Err() != nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(0, l.deadline-l.client.clock())
}

// Deadline returns the moment at which Remaining is zero, in Go's time, for
// deadlines of requests made under the lease. A renewal moves it, and while a
// machine is suspended Go's time stands still: Valid is exact, this is not.
func (l *Lease) Deadline() time.Time { return time.Now().Add(l.Remaining()) }

// Done returns a channel that is closed when the lease has ended. While a
// machine is suspended timers stand still; it is closed within a second after.
func (l *Lease) Done() <-chan struct{} { return l.done }

// Err returns nil while the lease is held, then why it ended: a [*LostError]
// ([ErrLeaseLost]) or [ErrReleased]. It reads the clock at each call.
func (l *Lease) Err() error {
	l.mu.Lock()
	err, over := l.err, l.deadline <= l.client.clock()
	l.mu.Unlock()
	if err != nil || !over {
		return err
	}
	l.expire()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// watch is the watchdog's: it ends the lease at its deadline.
func (l *Lease) watch() {
	l.mu.Lock()
	left := l.deadline - l.client.clock()
	if l.err == nil && left > 0 {
		l.watchdog.Reset(min(left, maxNap))
		l.mu.Unlock()
		return
	}
	l.mu.Unlock()
	l.expire()
}

// extend moves the deadline after a renewal, unless it has passed before the
// answer came: a lease that was over for its holder stays over.
func (l *Lease) extend(until time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil && l.client.clock() < l.deadline {
		l.deadline = max(l.deadline, until)
		l.failed = nil
	}
}

// expire ends a lease whose deadline has passed.
func (l *Lease) expire() {
	l.mu.Lock()
	lost := &LostError{Claim: l.claim, Cause: errDeadline, LastRenewal: l.failed}
	over := l.deadline <= l.client.clock()
	l.mu.Unlock()
	if over {
		l.end(lost)
	}
}

// end makes err final and tells those who wait; false if the lease had ended.
func (l *Lease) end(err error) bool {
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		return false
	}
	l.err = err
	onEnd := l.onEnd
	l.watchdog.Stop()
	l.client.jumps.untrack(l)
	close(l.done)
	l.mu.Unlock()
	if onEnd != nil {
		onEnd(err)
	}
	if err != ErrReleased {
		l.client.events.lost(context.Background(), l, err)
	}
	return true
}

// whenEnded has f called with Err when the lease ends, at once if it has ended.
func (l *Lease) whenEnded(f func(error)) {
	l.mu.Lock()
	l.onEnd = f
	err := l.err
	l.mu.Unlock()
	if err != nil {
		f(err)
	}
}

// age is how long the lease has been held.
func (l *Lease) age() time.Duration { return l.client.clock() - l.granted }
