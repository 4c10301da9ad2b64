package guard

import (
	"context"
	"time"
)

// Store keeps one mark per resource. All replicas of a service that guards a
// resource must share one Store; [NewMemory] is for one process.
//
// Implementations are safe for concurrent use and pass
// [github.com/fencepost-go/fencepost/guard/guardtest]. A call whose context
// ended before the call began never succeeds: it returns ErrUnavailable, or
// ErrOutcomeUnknown if something was sent.
type Store interface {
	// Admit decides claim against its resource's mark by [Decide] and
	// [SameOrNewer] and, if the token is above the mark, raises the mark to
	// it, in one atomic step. It returns the mark after the call: the claim's
	// own if it was admitted, else the one that refused it.
	//
	// Admitting a token that already is the mark is a read: it writes nothing
	// and costs no more than a read. A refused or invalid claim changes nothing
	// and leaves no state behind.
	//
	// Errors: a [*RejectedError] ([ErrStale], [ErrConflict]), ErrInvalid,
	// ErrUnavailable (nothing was written), ErrOutcomeUnknown (the mark may
	// have been raised; presenting the same claim again is safe and shows
	// whether it was).
	Admit(ctx context.Context, claim Claim) (Mark, error)

	// Mark returns the resource's mark; the zero Mark, or the floor with
	// Mark.Floor set, if it has none. It never writes.
	// Errors: ErrInvalid, ErrUnavailable.
	Mark(ctx context.Context, resource string) (Mark, error)

	// Retire deletes the marks that were last raised before the given time
	// and, in the same atomic step, raises the store's floor to the highest
	// token among them. From then on a resource without a mark admits only
	// tokens above the floor, but for an admission that is in progress. Retiring bounds growth, and safety depends on no
	// clock: retiring too much, or by a wrong clock, refuses good claims and
	// never admits a stale one.
	//
	// To retire without refusing any holder: first advance the issuer beyond the
	// highest mark that will be retired, so that every later grant is above the
	// new floor; let the earlier leases expire; then retire.
	// Errors: ErrUnavailable, ErrOutcomeUnknown; calling again is safe.
	Retire(ctx context.Context, before time.Time) (Retired, error)
}

// Retired is what [Store.Retire] did.
type Retired struct {
	// Count is how many marks were deleted.
	Count int64
	// Floor is the store's floor afterwards; NoToken if nothing was ever
	// retired.
	Floor Token
}
