// Package driver is the interface between lockclient and what issues the leases:
// PostgreSQL, memory, etcd, ZooKeeper, Redis, an HTTP lock server. Package
// lockclient keeps the timing (waiting, renewing, deadlines, repeats); an
// [Issuer] carries out single requests. Users hold a lockclient.Client; only
// code that connects another engine needs this package. An issuer imports guard
// and driver, and not lockclient.
//
// # What an issuer promises
//
//   - A grant of a resource has a token above every token granted there before,
//     also after release, expiry, takeover and purge (P3), and no two grants
//     have one token (P4). A refusal carries no token.
//   - By the issuer's clock no two leases of a resource run at one time.
//   - An acquire under the lease ID of a lease that runs returns that lease
//     again, with the same token. So a request whose response was lost can be
//     repeated.
//   - Abandoned means abandoned (P8): an acquire takes no effect once Request.Timeout has
//     passed since Acquire was called, by the issuer's clock, however long the
//     network delays it; where an engine can only bound that differently, its issuer's
//     documentation says how. An acquire whose context has ended before the call sends
//     nothing. After a Release without a token no acquire under its
//     lease ID is granted, not even one that was sent before. An issuer may
//     forget such an ID after an hour, the longest Request.Timeout there is.
//   - A renewal extends the lease of its claim, token and lease ID alike, and
//     creates nothing. The later end wins: no renewal and no repeated acquire
//     shortens a lease (P7). A release frees that lease and no successor's, also
//     where both have one lease ID.
//   - From is read before the request leaves. An issuer that dates it later
//     lets a holder believe in its lease after the issuer has granted it to
//     another.
//   - An error that is guard.ErrUnavailable means that nothing was written and
//     nothing will be; if there is any doubt, the error is
//     guard.ErrOutcomeUnknown.
//
// Package drivertest checks all of this on a real engine.
//
// # What it does not
//
// It does not validate requests: lockclient has checked names, lease IDs and
// TTLs with guard's rules and with [Limits]. It retries nothing that could be
// carried out twice, keeps no goroutine per lease and logs nothing, unless it is
// given a logger of its own.
//
// # Optional interfaces
//
// [Explainer] and [Clock] are found by a type assertion. An
// issuer that wraps another must forward those that the other has.
//
// # Where to read on
//
// This file is the port, errors.go its errors. clock.go, clock_linux.go and clock_other.go
// are the clock of deadlines. memory is the shortest issuer, drivertest the suite.
//
// # Compatibility
//
// Until version 1 exported names may change between minor versions. After that
// no method is added to Issuer: additions are optional interfaces.
package driver

import (
	"context"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// Issuer issues leases. It is safe for concurrent use. One call is one attempt:
// lockclient does the retrying.
//
// The end of the context need not end an exchange at once: an issuer may wait a
// moment for a response that is in flight, because that makes the outcome known.
type Issuer interface {
	// Limits returns what the engine can do. It does not block and always
	// returns the same.
	Limits() Limits

	// Acquire asks for a lease; it does not wait for one.
	//
	// A refusal writes nothing. A request under the lease ID of a lease that runs gets
	// that lease again, extended, if the owner is the same.
	//
	// Errors:
	//   - ErrHeld, a [*HeldError]. Its Remaining is 0 if the lease has been freed since,
	//     and short if it is kept for a process that has waited longer.
	//   - [ErrLeaseIDSpent]: the lease ID was released or abandoned.
	//   - guard.ErrInvalid, from [LeaseIDInUse]: another owner's lease runs under the ID.
	//   - guard.ErrSetup: no retry helps.
	//   - guard.ErrUnavailable: nothing was written. It may wrap [ErrBusy], which passes
	//     by itself, or [ErrLate], a request that came after its timeout.
	//   - guard.ErrOutcomeUnknown: the lease may have been granted.
	Acquire(ctx context.Context, r Request) (Grant, error)

	// Renew extends leases in one exchange and fills in results[i] for renewals[i].
	//
	// A lease that somebody else has locked fails by itself; one that is renewed alone
	// may wait for that. The slices have the same length, at most Limits.Batch, and no
	// claim is in them twice. [Renewed] says what went wrong with each.
	Renew(ctx context.Context, renewals []Renewal, results []Renewed)

	// Release frees the lease of the claim, and wakes the waiters' watches. freed is
	// false, with no error, if that lease is over.
	//
	// A claim without a token is an acquire that may have been granted or may arrive yet:
	// its lease is freed, whatever its token, and its lease ID is spent. Repeating a
	// release is harmless.
	//
	// Errors:
	//   - guard.ErrUnavailable: nothing was freed.
	//   - guard.ErrOutcomeUnknown: it may have been.
	Release(ctx context.Context, claim guard.Claim) (freed bool, err error)

	// Watch returns who has the lease, and calls wake when it is worth asking again: the
	// lease was released, or that is not known.
	//
	// wake may be called spuriously, late, again or never, from any goroutine, and must
	// not block; lockclient also asks on its own. ctx is that of the call: the watch goes
	// on when it ends, until Stop. A watch with a lease ID is a waiter's and has a place
	// in the queue with those of other processes: if it can, an issuer wakes the longest
	// waiting first. A watch without one only looks: it may never be woken.
	//
	// An error, such as [ErrNoWatch], means that this issuer cannot watch for now: the
	// waiter polls.
	Watch(ctx context.Context, w Watch, wake func()) (Watching, error)

	// Close frees connections and ends background work. Requests in flight may
	// fail. It is called once.
	Close() error
}

// Limits is what an engine can do. A zero field means no limit, or the default.
type Limits struct {
	// MinTTL and MaxTTL bound the TTLs that are granted as requested; 0 means
	// lockclient's own bound.
	MinTTL, MaxTTL time.Duration
	// TTLStep is the unit of which every TTL is a multiple; 0 means a
	// microsecond.
	TTLStep time.Duration
	// Batch is how many renewals go into one call; 0 means 1.
	Batch int
	// Poll is how long a waiter trusts a watch before it watches again; 0 means
	// two seconds.
	Poll time.Duration
	// ResourceBytes is the longest resource name; 0 means guard.MaxResourceLen.
	ResourceBytes int
	// MetadataBytes is the longest metadata; 0 means that the engine stores
	// none.
	MetadataBytes int
}

// Request is one attempt to acquire.
type Request struct {
	// Resource, LeaseID and Owner are valid by guard's rules.
	Resource, LeaseID, Owner string
	// Metadata is text for people, stored with the lease; may be empty.
	Metadata string
	// TTL is how long the lease lasts unless it is renewed.
	TTL time.Duration
	// Timeout is how long after the call the attempt is abandoned.
	Timeout time.Duration
	// Waiting says that the client has waited for the lease, or will wait if it
	// is refused. An issuer that wakes the longest waiting may keep a lease
	// that was just released for that one.
	Waiting bool
}

// Claim returns what the attempt may leave behind: a claim without a token.
func (r Request) Claim() guard.Claim { return guard.Claim{Resource: r.Resource, LeaseID: r.LeaseID} }

// Grant is a lease that was granted.
type Grant struct {
	// Token is the fencing token.
	Token guard.Token
	// AcquiredAt is when the lease was granted, by the issuer's clock; for a
	// lease that was already running, when it began.
	AcquiredAt time.Time
	// From is the reading of [Now], or of the issuer's own [Clock], that the TTL
	// counts from: before the request left. Never zero.
	From time.Duration
	// TTL is the one in force, at most the requested one; 0 means the requested
	// one.
	TTL time.Duration
	// Reclaimed says that the previous lease ran out without a release.
	Reclaimed bool
}

// Renewal is one lease to be extended.
type Renewal struct {
	// Claim is the lease's; it has a token.
	Claim guard.Claim
	// TTL is how long the lease is to last from now, at least: a lease that lasts
	// longer already is not shortened, since its holder may rely on that.
	TTL time.Duration
}

// Renewed is what became of a [Renewal]. The zero value, which an omitted item
// has, says that nothing is known.
type Renewed struct {
	// State says which of the fields below count.
	State RenewState
	// From and TTL are as in [Grant].
	From, TTL time.Duration
	// Err is why the state is unknown: guard.ErrUnavailable if the lease was
	// certainly not extended, else guard.ErrOutcomeUnknown.
	Err error
}

// RenewState is the outcome of one renewal.
type RenewState uint8

const (
	// Unknown: the renewal failed; Err says how. It is repeated.
	Unknown RenewState = iota
	// Extended: the lease lasts for its TTL from From.
	Extended
	// Over: the issuer no longer has the lease. It is lost.
	Over
)

// Watch is what to watch.
type Watch struct {
	// Resource is the resource whose lease is watched.
	Resource string
	// LeaseID is the waiter's; empty for who only looks.
	LeaseID string
	// Wait is how long an issuer that cannot watch yet, such as while it opens a
	// connection, may take until it can; 0 means that it fails at once.
	Wait time.Duration
}

// Watching is a watch in progress.
type Watching struct {
	// Held is who has the lease; nil if nobody, or the waiter itself: then it
	// is worth asking now.
	Held *HeldError
	// Stop ends the watch. It may be called more than once, and does not wait
	// for a running call of wake. The place in the queue is kept for a moment, for a
	// waiter that watches again.
	Stop func()
}

// Explainer is an issuer that can say why it no longer has a lease.
type Explainer interface {
	// Why returns the reason, such as a forced unlock; nil if none is known.
	Why(ctx context.Context, claim guard.Claim) error
}

// Clock is an issuer that has its own time, as a simulated one does.
type Clock interface {
	// Now is the clock of the holders; see [Now].
	Now() time.Duration
}
