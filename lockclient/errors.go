package lockclient

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

var (
	// ErrHeld: another holder has the lease. The error is a [*HeldError].
	ErrHeld = driver.ErrHeld
	// ErrLeaseIDSpent: the lease ID was released or abandoned, so that nothing is
	// granted under it any more.
	ErrLeaseIDSpent = driver.ErrLeaseIDSpent
	// ErrReleased: the lease was released by its own holder.
	ErrReleased = errors.New("lease released")
	// ErrClosed: the client is closed, or is being closed.
	ErrClosed = errors.New("the client is closed")
	// ErrLeaseLost is [guard.ErrLeaseLost]: the lease ended without being
	// released by its holder. The error is a [*LostError].
	ErrLeaseLost = guard.ErrLeaseLost
	// ErrForceUnlocked: an operator ended the lease. It is the cause of the
	// holder's [*LostError]; errors.As with [*ForceUnlockedError] says who and
	// why.
	ErrForceUnlocked = driver.ErrForceUnlocked
)

type (
	// HeldError says who holds the lease that was refused.
	HeldError = driver.HeldError
	// ForceUnlockedError says who ended a lease and why.
	ForceUnlockedError = driver.ForceUnlockedError
)

var (
	errLate     = errors.New("the answer came after the lease's own deadline")
	errDeadline = errors.New("the deadline passed without a renewal")
	errUnkept   = fmt.Errorf("%w, as nothing renews it: call Lease.KeepAlive, or use Client.Hold", errDeadline)
	errGone     = errors.New("the server no longer has it")
	errRaced    = errors.New("the holder changed with every attempt")
)

// LostError says which lease was lost and why. It unwraps to [ErrLeaseLost]
// and to Cause.
type LostError struct {
	// Claim is the lost lease's. Another holder may have a higher token by now.
	Claim guard.Claim
	// Cause says how the loss became known: the deadline passed, or the issuer
	// no longer has the lease.
	Cause error
	// LastRenewal is why the last renewal before the deadline failed; nil if
	// none failed. Unwrap leaves it out: it is not the reason for the loss.
	LastRenewal error
}

// Error names the claim, the cause and the last failed renewal.
func (e *LostError) Error() string {
	s := "fencepost: " + ErrLeaseLost.Error() + ": token " + e.Claim.Token.String() + " for " + strconv.Quote(e.Claim.Resource) + ": " + e.Cause.Error()
	if e.LastRenewal != nil {
		s += "; the last one: " + e.LastRenewal.Error()
	}
	return s
}

// Unwrap returns [ErrLeaseLost] and the cause.
func (e *LostError) Unwrap() []error { return []error{ErrLeaseLost, e.Cause} }
