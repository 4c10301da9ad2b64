package httpfence

import (
	"context"

	"github.com/fencepost-go/fencepost/guard"
)

// Transactor runs fn in a transaction that only the current holder of the claim's resource can
// commit. The Transactor method of package sqlfence's DB returns one for pgx and for database/sql.
//
// The transaction does not begin unless the claim is the resource's mark, or is above it and has
// raised it. No newer claim can be raised until it has ended.
//
// fn is called at most once, with a context derived from ctx that carries the transaction. If fn
// returns an error or panics, the transaction is rolled back, and the error or the panic is passed
// on. InTx returns nil only after COMMIT, and waits for nothing beyond the end of ctx.
//
// Errors, besides fn's own:
//   - [guard.ErrStale], [guard.ErrConflict]: the claim was refused; fn did not run.
//   - [guard.ErrUnavailable]: nothing was committed.
//   - [guard.ErrOutcomeUnknown]: COMMIT was sent and no response came.
type Transactor interface {
	InTx(ctx context.Context, claim guard.Claim, fn func(ctx context.Context) error) error
	// Marks returns the store whose marks InTx compares with and raises.
	Marks() guard.Store
}
