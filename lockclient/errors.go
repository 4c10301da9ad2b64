package lockclient

import (
	"errors"
	"fmt"

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
	// ErrClosed: the client is closed, or is being closed. It comes with
	// guard.ErrSetup, since no retry helps.
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
	// LostError says which lease was lost and why.
	LostError = guard.LostError
	// HeldError says who holds the lease that was refused.
	HeldError = driver.HeldError
	// ForceUnlockedError says who ended a lease and why.
	ForceUnlockedError = driver.ForceUnlockedError
)

var (
	errLate     = errors.New("the response came after the lease's own deadline")
	errDeadline = errors.New("the lease expired before a renewal")
	errUnkept   = fmt.Errorf("%w: nothing renews it by itself; call Lease.KeepAlive, or use Client.Hold", errDeadline)
	errGone     = errors.New("the server no longer has it")
	errRaced    = errors.New("the holder changed with every attempt")
)
