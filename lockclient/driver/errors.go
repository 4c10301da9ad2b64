package driver

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

var (
	// ErrHeld: another holder has the lease. The error is a [*HeldError].
	ErrHeld = errors.New("lease is held")
	// ErrLeaseIDSpent: the lease ID was released or abandoned, so that nothing is
	// granted under it any more. Nothing was written.
	ErrLeaseIDSpent = errors.New("lease ID is spent")
	// ErrLate: the request came after its own timeout. Nothing was written.
	ErrLate = errors.New("the request came after its timeout")
	// ErrBusy: a lock on the server was in the way, which passes by itself. A
	// guard.ErrUnavailable wraps it.
	ErrBusy = errors.New("temporarily locked by another session")
	// ErrNoWatch: the issuer cannot report releases for now.
	ErrNoWatch = errors.New("release notifications are unavailable")
)

// HeldError says who holds the lease that was refused. It unwraps to [ErrHeld].
type HeldError struct {
	// Resource is the requested resource.
	Resource string
	// Owner is the holder's owner name, Metadata what it says about itself.
	Owner, Metadata string
	// Token and LeaseID are the holder's. They are for logs; presenting them as
	// a claim impersonates the holder.
	Token   guard.Token
	LeaseID string
	// ExpiresAt is when the lease runs out unless it is renewed, by the
	// issuer's clock.
	ExpiresAt time.Time
	// Remaining is the time to ExpiresAt, by the issuer's clock when it
	// responded. 0 means that the lease has been freed since: ask again. It is
	// short, and nothing is said of a holder, if the lease is free and kept for a
	// process that has waited longer.
	Remaining time.Duration
}

// Error names the resource, the holder, its token and the time left.
func (e *HeldError) Error() string {
	if e.Owner == "" && e.Remaining > 0 {
		return fmt.Sprintf("fencepost: %v: %s is kept for a process that has waited longer, for another %v",
			ErrHeld, strconv.Quote(e.Resource), e.Remaining.Round(time.Millisecond))
	}
	return fmt.Sprintf("fencepost: %v: %s by %s, token %s, for another %v unless renewed",
		ErrHeld, strconv.Quote(e.Resource), strconv.Quote(e.Owner), e.Token, e.Remaining.Round(time.Millisecond))
}

// Unwrap returns [ErrHeld].
func (e *HeldError) Unwrap() error { return ErrHeld }

// LeaseIDInUse is the guard.ErrInvalid of an acquire under the lease ID of a
// running lease that has another owner: two holders chose one ID, and would both
// write under one token.
func LeaseIDInUse(leaseID, owner string) error {
	return guard.Invalid("LeaseID", leaseID, "is the ID of a lease that "+strconv.Quote(owner)+" holds; leave it empty, or choose one for each acquisition")
}

// ErrForceUnlocked: an operator ended the lease. The error is a
// [*ForceUnlockedError].
var ErrForceUnlocked = errors.New("force-unlocked by an operator")

// ForceUnlockedError says who ended a lease and why. It unwraps to
// [ErrForceUnlocked].
type ForceUnlockedError struct {
	// Actor and Reason are the operator's words.
	Actor, Reason string
	// At is when, by the issuer's clock.
	At time.Time
}

// Error names the actor and the reason.
func (e *ForceUnlockedError) Error() string {
	return fmt.Sprintf("%v, %s, because %s", ErrForceUnlocked, strconv.Quote(e.Actor), strconv.Quote(e.Reason))
}

// Unwrap returns [ErrForceUnlocked].
func (e *ForceUnlockedError) Unwrap() error { return ErrForceUnlocked }
