package sequence

import (
	"errors"
	"fmt"

	"github.com/fencepost-go/fencepost/guard"
)

// Refusal is the result of a request, such as a *driver.HeldError. A caller gets Err.
type Refusal struct{ Err error }

// Error is Err's.
func (e Refusal) Error() string { return e.Err.Error() }

// WentBack is the refusal of an issuer that found that the engine's data is older than
// before, or other data. It is a guard.ErrMarkAhead.
func WentBack(format string, args ...any) error {
	return Refusal{fmt.Errorf("fencepost: %w: %s; call RaiseEpoch, then restart the workers", guard.ErrMarkAhead, fmt.Sprintf(format, args...))}
}

// Unwritten is the error of a request that cannot have written: it was not sent, or it
// only reads.
type Unwritten struct{ Err error }

// Error is Err's.
func (e Unwritten) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e Unwritten) Unwrap() error { return e.Err }

// Failed says what an error means for its request. verdict says what the engine's error
// means after a write: guard.ReasonSetup, guard.ReasonUnavailable (nothing was written)
// or guard.ReasonOutcomeUnknown.
//
// The cause of a context is anybody's error and may be one of guard's, so that what is
// certain is known by types of this package and not by sentinels.
func Failed(op string, claim guard.Claim, err error, verdict func(error) guard.Reason) error {
	if err == nil {
		return nil
	}
	if refusal := (Refusal{}); errors.As(err, &refusal) {
		return refusal.Err
	}
	reason, unwritten := verdict(err), errors.As(err, new(Unwritten))
	switch {
	case errors.As(err, new(Foreign)), unwritten && errors.Is(err, ErrExhausted), reason == guard.ReasonSetup:
		return guard.Setup(op, claim, err)
	case unwritten || reason == guard.ReasonUnavailable:
		return guard.Unavailable(op, claim, err)
	}
	return guard.OutcomeUnknown(op, claim, err)
}
