package httpfence

import (
	"context"

	"github.com/fencepost-go/fencepost/guard"
)

// Transactor runs fn in a transaction that is fenced by claim: no newer claim
// can be raised on the claim's resource until the transaction has ended, and
// it does not begin unless the claim is the resource's mark, or is above it
// and has raised it. The Transactor method of package sqlfence's DB returns
// one for pgx and for database/sql.
//
// fn is called at most once, with a context derived from ctx that carries the
// transaction. If fn returns an error or panics, the transaction is rolled
// back, and the error or the panic is passed on. A nil error means that fn
// returned nil and that the transaction is committed. It must not wait for
// anything beyond the end of ctx.
//
// The errors are those of package guard. After [guard.ErrUnavailable] nothing
// is committed; for a COMMIT without a response the error is
// [guard.ErrOutcomeUnknown].
type Transactor interface {
	InTx(ctx context.Context, claim guard.Claim, fn func(ctx context.Context) error) error
	// Marks returns the store whose marks InTx compares with and raises.
	Marks() guard.Store
}
