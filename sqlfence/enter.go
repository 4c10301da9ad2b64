package sqlfence

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
)

const enterRowSQL = "SELECT " + sqlkit.EncodedSQL + ", fencepost.enter_row($1::pg_catalog.text, $2::bigint, $3::pg_catalog.text, $4::int, $5::int)"

// Enter fences a transaction that was begun elsewhere, by sqlc, GORM or the
// driver itself: from here to its end no claim above these can be raised on
// their resources, and Enter is refused unless each claim is its resource's
// mark or above it. Call it before anything else in the transaction, at its top
// level, with all claims at once; they are entered in the order of their
// resources, one round trip each.
//
// It gives less than [DB.InTx]:
//
//   - P2 holds only for what is read in this transaction after Enter. Earlier
//     reads, in this transaction or elsewhere, may miss a predecessor's
//     updates.
//   - Under READ COMMITTED a claim above the mark is raised in this same
//     transaction: the mark is rolled back with it, and until it ends every
//     other transaction on the resource waits. Call [DB.Raise] first to avoid
//     both.
//   - Under REPEATABLE READ and SERIALIZABLE the claim must have been raised
//     before the transaction took its snapshot, else ErrInvalid: raise, roll back and
//     begin again. If another claim was raised since, or another Enter committed, the
//     result is ErrUnavailable with SQLSTATE 40001 inside: begin again.
//   - It writes the mark's row, so transactions of one holder that use Enter on
//     one resource run one after another.
//   - COMMIT, its lost response and retries are the caller's.
//
// Inside a savepoint (a nested transaction of pgx or gorm, a PL/pgSQL block
// with EXCEPTION) it is refused with ErrInvalid: rolling back to the savepoint
// would release the fence but keep the transaction.
//
// Any error leaves the transaction aborted; roll it back. The errors:
// [*guard.RejectedError] with ErrStale or ErrConflict; ErrInvalid also for no
// claim, for two claims on one resource, and in the transaction of a [DB.InTx]
// for a claim that is not one of its own, or once the callback has begun another
// transaction; ErrUnavailable.
func (d *DB[Tx]) Enter(ctx context.Context, tx Tx, claims ...guard.Claim) error {
	start := time.Now()
	sorted, err := sortClaims(claims)
	if err == nil {
		err = sqlkit.Ended(ctx, "enter", claims[0])
	}
	if err == nil {
		err = sqlkit.Interrupted(ctx, d.enterForeign(ctx, tx, sorted))
	}
	d.observeAll(ctx, claims, start, err)
	return err
}

func (d *DB[Tx]) enterForeign(ctx context.Context, tx Tx, sorted []guard.Claim) error {
	if own := d.callback(ctx); own != nil && own.claims != nil && d.backend.same(own.tx, tx) {
		return d.checkEntered(ctx, own, sorted)
	}
	in, presents := d.backend.in(tx), ", ("+strings.ReplaceAll(presentSQL, "$1", "$7")+")"
	for _, claim := range sorted {
		// Each adds its own claim: to add all with each would be cubic.
		s := d.enterStatement(enterRowSQL+markSetSQL, claim, d.presented([]guard.Claim{claim}), presents)
		if _, err := in.Exec(ctx, s.sql, s.args); err != nil {
			return enterFailure(claim, err)
		}
	}
	return nil
}

// checkEntered checks that the transaction of a callback is still fenced by claims.
func (d *DB[Tx]) checkEntered(ctx context.Context, own *callback[Tx], claims []guard.Claim) error {
	for _, claim := range claims {
		if !slices.Contains(own.claims, claim) {
			return guard.Invalid("claim", claim.Resource, "is not one of the claims of the InTx that Enter is called in")
		}
	}
	var same bool // the callback may have begun another one on the connection
	if _, err := sqlkit.Row(ctx, d.backend.in(own.tx), markedSQL, []any{d.marker}, &same); err != nil {
		return sqlkit.SchemaFailure("enter", claims[0], err)
	}
	if !same {
		return guard.Invalid("Enter", claims[0].Resource, "is called in a transaction that the callback of InTx began itself; return from InTx first")
	}
	return nil
}

// enterFailure is sqlkit.SchemaFailure for transactions that the caller began.
func enterFailure(claim guard.Claim, err error) error {
	if sqlkit.NotEncoded(err) {
		return invalidUse{sqlkit.ErrEncoding, err}
	}
	if sqlkit.Explained(err) { // the transaction of InTx did not begin
		return err
	}
	switch pgerr.State(err) {
	case pgerr.Subtransaction:
		return invalidUse{guard.Invalid("Enter", claim.Resource, "is called inside a savepoint, whose rollback would free the fence"), err}
	case pgerr.MustRaise:
		return invalidUse{guard.Invalid("Enter", claim.Resource, "must be called after Raise and before the transaction's snapshot under REPEATABLE READ and SERIALIZABLE"), err}
	}
	return sqlkit.SchemaFailure("enter", claim, err)
}

// invalidUse is an InvalidError with the server's error that detected the
// misuse.
type invalidUse struct {
	error
	cause error
}

func (e invalidUse) Unwrap() []error { return []error{e.error, e.cause} }
