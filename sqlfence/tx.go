package sqlfence

import (
	"context"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

const (
	enterSQL = "SELECT fencepost.enter($1::text, $2::bigint, $3::text, $4::int, $5::int)"
	raiseSQL = "SELECT fencepost.raise($1::text, $2::bigint, $3::text, $4::int)"
)

// maxEnter bounds how often a transaction raises and enters again: once is the
// rule, a second time only if the mark was retired in between.
const maxEnter = 3

// txKey marks the context of a callback. It has the DB in it, so that a nested
// call is found behind those of other DBs.
type txKey[Tx any] struct{ of *DB[Tx] }

// InTx runs fn in a fenced transaction: until it ends, no claim above this one
// can be raised on the resource, and it does not begin unless this claim is
// the resource's mark. So nothing that fn writes can take effect after a newer
// holder has taken over (P1), and a newer holder's raise waits for it (P2).
// Everything that is written under the resource is fenced: rows, sets of rows,
// inserts, several tables. The transaction is READ COMMITTED.
//
// If the claim is above the mark, the mark is first raised in a transaction of
// its own; it stays raised whatever becomes of fn. To take over, read what the
// predecessor left inside fn, not before.
//
// fn's context carries the claim ([guard.ClaimFrom]). If fn returns an error
// or panics, the transaction is rolled back and the error or panic passed on
// as it is. fn must not end the transaction, because what it wrote after that
// would not be fenced, and must return the error of a statement that failed. A
// transaction of the same holder may run beside it; a
// nested InTx of the same DB is refused, because it would be another
// transaction. fn is called at most once.
//
// The errors, besides fn's: [*guard.RejectedError] with ErrStale or
// ErrConflict; ErrInvalid for a malformed claim, nothing sent; ErrUnavailable:
// nothing was committed and a retry is safe (it wraps the driver's error, for
// example of a lock timeout); ErrOutcomeUnknown: the COMMIT was sent and not
// answered, or fn ended the transaction itself. An error of COMMIT itself, such as a deferred constraint, is
// passed on with the driver's error inside; nothing was committed.
func (d *DB[Tx]) InTx(ctx context.Context, claim guard.Claim, fn func(ctx context.Context, tx Tx) error) error {
	start := time.Now()
	err := d.inTx(ctx, claim, fn)
	d.observe(ctx, guard.Event{Op: guard.OpTransaction, Claim: claim, Mark: markOf(claim, err), Duration: time.Since(start), Err: err})
	return err
}

func (d *DB[Tx]) inTx(ctx context.Context, claim guard.Claim, fn func(ctx context.Context, tx Tx) error) error {
	const op = "fenced transaction"
	if err := claim.Validate(); err != nil {
		return err
	}
	if ctx.Value(txKey[Tx]{d}) != nil {
		return guard.Invalid("InTx", claim.Resource, "is called inside another InTx; pass its transaction on instead")
	}
	if err := ended(ctx, op, claim); err != nil {
		return err
	}
	tx, err := d.enter(ctx, claim)
	if err != nil {
		return err
	}
	committed := false
	defer func() {
		if !committed { // fn failed, panicked or called runtime.Goexit
			tx.rollback()
		}
	}()
	inner := context.WithValue(guard.WithClaim(ctx, claim), txKey[Tx]{d}, true)
	if err := fn(inner, tx.handle()); err != nil {
		return err
	}
	if err := ended(ctx, op, claim); err != nil {
		return err
	}
	err = tx.commit(ctx, d.opts.CommitTimeout)
	committed = err == nil
	return failure("commit of a "+op, claim, err, true)
}

// enter begins the fenced transaction, raising the mark first if the claim is
// above it. An unknown outcome of that raise is no unknown outcome of the
// caller's work, of which nothing was sent.
func (d *DB[Tx]) enter(ctx context.Context, claim guard.Claim) (transaction[Tx], error) {
	const op = "enter"
	args := []any{claim.Resource, int64(claim.Token), claim.LeaseID,
		int32(d.opts.LockTimeout.Milliseconds()), int32(d.opts.IdleTimeout.Milliseconds())}
	var err error
	for range maxEnter {
		var tx transaction[Tx]
		if tx, err = d.backend.begin(ctx, enterSQL, args); err == nil {
			return tx, nil
		}
		if !mustRaise(err) {
			return nil, schemaFailure(op, claim, err)
		}
		if err := d.raise(ctx, claim, false); err != nil {
			return nil, err
		}
	}
	return nil, guard.Unavailable(op, claim, err)
}

// Raise makes the claim the resource's mark, unless it is already, and waits
// until every fenced transaction of an older holder has ended. A new holder
// that calls it before it reads loses none of the acknowledged updates of its
// predecessor and is overwritten by none (P2). It is idempotent, and survives
// a crash of the server once it returned.
//
// It raises the marks of schema fencepost, with which [DB.InTx] and
// [DB.Admit] compare; a [Table]'s rows have marks of their own.
//
// The errors: [*guard.RejectedError] with ErrStale or ErrConflict; ErrInvalid;
// ErrUnavailable: not raised (also when an older holder's transaction did not
// end within Options.RaiseTimeout); ErrOutcomeUnknown: call it again.
func (d *DB[Tx]) Raise(ctx context.Context, claim guard.Claim) error {
	start := time.Now()
	err := claim.Validate()
	if err == nil {
		err = ended(ctx, "raise", claim)
	}
	if err == nil {
		err = d.raise(ctx, claim, true)
	}
	d.observe(ctx, guard.Event{Op: guard.OpRaise, Claim: claim, Mark: markOf(claim, err), Duration: time.Since(start), Err: err})
	return err
}

// raise raises the mark. Only for a caller to whom the raise is the work is
// the lost answer of its COMMIT an unknown outcome; work says so.
func (d *DB[Tx]) raise(ctx context.Context, claim guard.Claim, work bool) error {
	const op = "raise"
	tx, err := d.backend.begin(ctx, raiseSQL, []any{claim.Resource, int64(claim.Token), claim.LeaseID,
		int32(d.opts.RaiseTimeout.Milliseconds())})
	if err != nil {
		return schemaFailure(op, claim, err)
	}
	defer tx.rollback() // gives a connection back that did not commit; else does nothing
	return failure(op, claim, tx.commit(ctx, d.opts.CommitTimeout), work)
}
