package lockclient

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
	// ErrReleased: the lease was released by its own holder.
	ErrReleased = errors.New("lease released")
	// ErrLeaseLost is [guard.ErrLeaseLost]: the lease ended without being
	// released by its holder. The error is a [*LostError].
	ErrLeaseLost = guard.ErrLeaseLost
)

// ErrForceUnlocked: an operator ended the lease. It is the cause of the holder's
// [*LostError]; errors.As with [*ForceUnlockedError] says who and why.
var ErrForceUnlocked = errors.New("force-unlocked by an operator")

var (
	errClientClosed = errors.New("the client is closed")
	errLate         = errors.New("the answer came after the lease's own deadline")
	errDeadline     = errors.New("its deadline passed without a renewal")
	errGone         = errors.New("the server no longer has it")
	errRaced        = errors.New("others were faster, again and again")
)

// HeldError says who has the lease that could not be had. It unwraps to
// [ErrHeld].
type HeldError struct {
	// Resource is what was asked for.
	Resource string
	// Owner is the holder's owner name.
	Owner string
	// Token and LeaseID are the holder's. They are facts for a log; whoever
	// presents them as a claim impersonates the holder.
	Token   guard.Token
	LeaseID string
	// ExpiresAt is when the lease runs out unless it is renewed, by the
	// server's clock.
	ExpiresAt time.Time
	// Remaining is the time to ExpiresAt, by the server's clock when it
	// answered.
	Remaining time.Duration
}

// Error names the resource, the holder, its token and the time that is left.
func (e *HeldError) Error() string {
	return fmt.Sprintf("fencepost: %v: %s by %s, token %s, for another %v unless renewed",
		ErrHeld, strconv.Quote(e.Resource), strconv.Quote(e.Owner), e.Token, e.Remaining.Round(time.Millisecond))
}

// Unwrap returns [ErrHeld].
func (e *HeldError) Unwrap() error { return ErrHeld }

// LostError says which lease was lost and why. It unwraps to [ErrLeaseLost]
// and to Cause.
type LostError struct {
	// Claim is what the lease entitled to. Another holder may have a higher
	// token by now.
	Claim guard.Claim
	// Cause says how the loss became known: the deadline passed, or the server
	// no longer has the lease.
	Cause error
	// LastRenewal is why the last renewal before the deadline failed; nil if
	// none failed. Unwrap leaves it out, because its reason is not the loss's.
	LastRenewal error
}

// Error names the claim, the cause and the last failed renewal.
func (e *LostError) Error() string {
	s := fmt.Sprintf("fencepost: %v: token %s for %s: %v", ErrLeaseLost, e.Claim.Token, strconv.Quote(e.Claim.Resource), e.Cause)
	if e.LastRenewal != nil {
		s += "; the last one: " + e.LastRenewal.Error()
	}
	return s
}

// Unwrap returns [ErrLeaseLost] and the cause.
func (e *LostError) Unwrap() []error { return []error{ErrLeaseLost, e.Cause} }

// ForceUnlockedError says who ended a lease and why. It unwraps to
// [ErrForceUnlocked].
type ForceUnlockedError struct {
	// Actor and Reason are what the operator gave to lockadmin's ForceUnlock.
	Actor, Reason string
	// At is when, by the server's clock.
	At time.Time
}

// Error names the actor and the reason.
func (e *ForceUnlockedError) Error() string {
	return fmt.Sprintf("%v, %s, because %s", ErrForceUnlocked, strconv.Quote(e.Actor), strconv.Quote(e.Reason))
}

// Unwrap returns [ErrForceUnlocked].
func (e *ForceUnlockedError) Unwrap() error { return ErrForceUnlocked }
