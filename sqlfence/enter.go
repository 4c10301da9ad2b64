package sqlfence

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
)

const (
	// enterRowSQL also presents its claim to the triggers of guarded tables.
	enterRowSQL = "SELECT " + sqlkit.EncodedSQL + ", fencepost.enter_row($1::pg_catalog.text, $2::bigint, $3::pg_catalog.text, $4::int, $5::int)" +
		", fencepost.present($1::pg_catalog.text, $2::bigint, $3::pg_catalog.text)"
	presentSQL = "SELECT " + sqlkit.EncodedSQL + ", fencepost.present($1::pg_catalog.text, $2::bigint, $3::pg_catalog.text)"
)

// Enter fences a transaction that was begun elsewhere, by sqlc, GORM or the driver itself:
// until it ends, nobody can raise a mark past these claims.
//
// Call it before anything else in the transaction, at its top level, with all claims at once.
// They are entered in the order of their resources, one round trip each, and presented to
// triggers. If one is refused the transaction is aborted: roll it back.
//
// It gives less than [DB.InTx]. P2 holds only for what is read after Enter, in this transaction.
// Transactions of one holder on one resource run one after another. COMMIT, its lost response
// and retries are the caller's. A claim above the mark is raised in this same transaction,
// while every other one on the resource waits: call [DB.Raise] first. Under REPEATABLE READ and
// SERIALIZABLE it must have been raised before the transaction took its snapshot.
//
// Errors:
//   - guard.ErrStale, guard.ErrConflict: the claim was refused, as a [*guard.RejectedError].
//   - guard.ErrInvalid: no claim, two for one resource, or one that was not raised before the
//     snapshot; inside a savepoint, whose rollback would release the fence; and in a callback's
//     transaction, for a claim that is not one of its own, or once it has begun another one.
//   - guard.ErrUnavailable: begin again, also with SQLSTATE 40001 if another claim was raised,
//     or another Enter committed, since the snapshot.
func (d *DB[Tx]) Enter(ctx context.Context, tx Tx, claims ...guard.Claim) error {
	start := time.Now()
	sorted, err := sortClaims(claims)
	if err == nil {
		err = notNil(tx)
	}
	if err == nil {
		err = sqlkit.Ended(ctx, enterOp, claims[0])
	}
	if err == nil {
		err = sqlkit.Interrupted(ctx, d.enterForeign(ctx, tx, sorted))
	}
	d.observeAll(ctx, claims, start, err)
	return err
}

// notNil refuses a nil transaction.
func notNil[Tx any](tx Tx) error {
	if none := *new(Tx); any(tx) == any(none) {
		return guard.Invalid("tx", "nil", "must not be nil")
	}
	return nil
}

func (d *DB[Tx]) enterForeign(ctx context.Context, tx Tx, sorted []guard.Claim) error {
	if own := d.callback(ctx); own != nil && d.backend.same(own.tx, tx) {
		return d.checkEntered(ctx, own, sorted)
	}
	for _, claim := range sorted {
		_, err := d.backend.in(tx).Exec(ctx, enterRowSQL, []any{claim.Resource, int64(claim.Token), claim.LeaseID,
			int32(d.opts.LockTimeout.Milliseconds()), int32(d.opts.IdleTimeout.Milliseconds())})
		if pgerr.State(err) == pgerr.LockTimeout {
			return d.blocked(ctx, []guard.Claim{claim}, enterFailure(claim, err))
		}
		if err != nil {
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
	if _, err := sqlkit.Row(ctx, d.backend.in(own.tx), markedSQL, nil, &same); err != nil {
		return sqlkit.SchemaFailure(enterOp, claims[0], err)
	}
	if !same {
		return guard.Invalid("Enter", claims[0].Resource, "is called in a transaction that the callback of InTx began itself; return from InTx first")
	}
	return nil
}

// enterFailure is sqlkit.SchemaFailure for transactions that the caller began.
func enterFailure(claim guard.Claim, err error) error {
	switch pgerr.State(err) {
	case pgerr.Subtransaction:
		return invalidUse{guard.Invalid("Enter", claim.Resource, "is called inside a savepoint, whose rollback would free the fence"), err}
	case pgerr.MustRaise:
		return invalidUse{guard.Invalid("Enter", claim.Resource, "must be called after Raise and before the transaction's snapshot under REPEATABLE READ and SERIALIZABLE"), err}
	}
	return sqlkit.SchemaFailure(enterOp, claim, err)
}

// Present makes claims known to triggers (sqladmin's InstallTrigger) for the rest of
// tx, one of the driver's own transactions, one round trip each; [DB.InTx] does so itself.
// It decides nothing: the triggers compare a claim when something is written under its
// resource. A claim replaces one that was presented earlier for the same resource.
//
// The marks must have been raised before ([DB.Raise]). The setting ends with the
// transaction and so works behind PgBouncer's transaction pooling. Programs in
// other languages call fencepost.present(resource, token, lease). A transaction can
// present up to 64 claims.
//
// The errors: ErrInvalid for a malformed claim or too many; else those of a
// statement in a transaction that has committed nothing yet.
func (d *DB[Tx]) Present(ctx context.Context, tx Tx, claims ...guard.Claim) error {
	if len(claims) > maxClaims {
		return guard.Invalid("claims", strconv.Itoa(len(claims)), "must be at most "+strconv.Itoa(maxClaims))
	}
	for _, c := range claims {
		if err := c.Validate(); err != nil {
			return err
		}
	}
	if err := notNil(tx); err != nil {
		return err
	}
	for _, c := range claims {
		if _, err := d.backend.in(tx).Exec(ctx, presentSQL, []any{c.Resource, int64(c.Token), c.LeaseID}); err != nil {
			if pgerr.State(err) == pgerr.InvalidParameter { // with those that it had presented before
				return invalidUse{guard.Invalid("claims", c.Resource, "is one more than a transaction can present"), err}
			}
			return sqlkit.SchemaFailure("present", c, err)
		}
	}
	return nil
}
