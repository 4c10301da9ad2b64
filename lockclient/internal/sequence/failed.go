package sequence

import (
	"errors"

	"github.com/fencepost-go/fencepost/guard"
)

// Refusal is the result of a request, such as a *driver.HeldError. A caller gets Err.
type Refusal struct{ Err error }

// Error is Err's.
func (e Refusal) Error() string { return e.Err.Error() }

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
	reason := verdict(err)
	switch {
	case errors.As(err, new(Foreign)) || reason == guard.ReasonSetup:
		return guard.Setup(op, claim, err)
	case errors.As(err, new(Unwritten)) || reason == guard.ReasonUnavailable:
		return guard.Unavailable(op, claim, err)
	}
	return guard.OutcomeUnknown(op, claim, err)
}
