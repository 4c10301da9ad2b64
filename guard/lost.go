package guard

import (
	"context"
	"errors"
	"strconv"
)

// LostError says which lease was lost and how that became known. Every package
// of the module reports a lost lease by it, before anything was sent; a server
// that refuses a claim returns a [*RejectedError]. It unwraps to [ErrLeaseLost]
// and to Cause.
type LostError struct {
	// Claim is the lost lease's. Another holder may have a higher token by now.
	Claim Claim
	// Cause says how the loss became known: the deadline passed, or the issuer
	// no longer has the lease. It may be nil.
	Cause error
	// LastRenewal is why the last renewal before the deadline failed; nil if
	// none failed. Unwrap leaves it out: it is not the reason for the loss.
	LastRenewal error
}

// Lost returns a [*LostError] if ctx carries a lease ([WithLease]) that is no
// longer valid, and nil otherwise. If the lease has a method Err that returns
// a [*LostError], as the leases of package lockclient have, it is that one, with
// its facts.
func Lost(ctx context.Context) error {
	lease, ok := LeaseFrom(ctx)
	if !ok || lease.Valid() {
		return nil
	}
	cause := context.Cause(ctx)
	if l, ok := lease.(interface{ Err() error }); ok {
		if err := l.Err(); err != nil {
			cause = err
		}
	}
	var lost *LostError
	if errors.As(cause, &lost) && lost.Claim == lease.Claim() {
		return lost
	}
	return &LostError{Claim: lease.Claim(), Cause: cause}
}

// Error names the claim, the cause and the last failed renewal.
func (e *LostError) Error() string {
	s := "fencepost: " + ErrLeaseLost.Error() + ": token " + e.Claim.Token.String() + " for " + strconv.Quote(e.Claim.Resource)
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	if e.LastRenewal != nil {
		s += "; the last one: " + e.LastRenewal.Error()
	}
	return s
}

// Unwrap returns [ErrLeaseLost] and the cause.
func (e *LostError) Unwrap() []error { return unwrapped(ErrLeaseLost, e.Cause) }
