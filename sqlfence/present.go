package sqlfence

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
)

// presentSQL adds claims to those that the transaction has already presented.
const presentSQL = `SELECT CASE WHEN ` + sqlkit.EncodedSQL + ` IS NOT NULL THEN pg_catalog.count(fencepost.present(c OPERATOR(pg_catalog.->>) 'resource',
		(c OPERATOR(pg_catalog.->>) 'token')::bigint, coalesce(c OPERATOR(pg_catalog.->>) 'leaseId', ''))) END
	FROM pg_catalog.jsonb_array_elements($1::pg_catalog.text::pg_catalog.jsonb) c`

// claimsSetting is the value of the setting fencepost.claims, in which the
// triggers find what the transaction presents.
func claimsSetting(claims ...guard.Claim) string { return sqlkit.JSON(claims) }

// Present makes claims known to triggers (sqladmin's InstallTrigger) for the rest of
// tx, one of the driver's own transactions; with [Options].PresentClaims
// [DB.InTx] does so itself. It decides nothing: the triggers compare a claim when
// something is written under its resource. A claim replaces one that was
// presented earlier for the same resource.
//
// The marks must have been raised before ([DB.Raise]). The setting ends with the
// transaction and so works behind PgBouncer's transaction pooling. Programs in
// other languages call fencepost.present(resource, token, lease), or
//
//	SELECT set_config('fencepost.claims', '[{"resource":"r","token":"11","leaseId":"l"}]', true)
//
// The errors: ErrInvalid for a malformed claim, nothing sent; else those of a
// statement in a transaction that has committed nothing yet.
func (d *DB[Tx]) Present(ctx context.Context, tx Tx, claims ...guard.Claim) error {
	for _, c := range claims {
		if err := c.Validate(); err != nil {
			return err
		}
	}
	if len(claims) == 0 {
		return nil
	}
	var n int64
	_, err := sqlkit.Row(ctx, d.backend.in(tx), presentSQL, []any{claimsSetting(claims...)}, &n)
	if sqlkit.NotEncoded(err) {
		return invalidUse{sqlkit.ErrEncoding, err}
	}
	return sqlkit.SchemaFailure("present", guard.Claim{}, err)
}

// ErrorFrom returns guard's error for the error of a statement that a trigger or
// function of schema fencepost refused, and err itself if it is anything else,
// nil included. It is for statements that the application, an ORM or generated
// code sends itself:
//
//	SF001  ErrStale, a *guard.RejectedError with claim and mark
//	SF002  ErrConflict, likewise
//	SF003  ErrMissing: no claim was presented for the resource of a row written,
//	       in [DB.InTx] because Options.PresentClaims is not set
//	SF004  ErrUnavailable: the claim is above the mark; raise it, then run the
//	       transaction again
//	40001  ErrUnavailable, under REPEATABLE READ and SERIALIZABLE: run the
//	       transaction again
//	40P01  ErrUnavailable, of a deadlock, whatever waited: likewise
//	22...  ErrInvalid, from within a function of schema fencepost: the setting
//	       fencepost.claims is malformed, or the row names no resource
//
// The driver's error stays reachable with errors.As. Facts other than the
// reason, and ErrInvalid, need pgx or its stdlib.
func ErrorFrom(err error) error {
	if guard.ReasonOf(err) != guard.ReasonOther {
		return err
	}
	switch pgerr.State(err) {
	case pgerr.Stale, pgerr.Conflict, pgerr.Missing, pgerr.MustRaise, pgerr.Serialization, pgerr.Deadlock:
		return sqlkit.Failure(guardedWrite, sqlkit.OfferedIn(err), err, false)
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) && strings.HasPrefix(pg.Code, "22") && strings.Contains(pg.Where, "function fencepost.") {
		return fmt.Errorf("sqlfence: %s: %w: %w", guardedWrite, guard.ErrInvalid, err)
	}
	return err
}

const guardedWrite = "guarded write"
