package sqlfence

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
)

const enterRowSQL = "SELECT " + sqlkit.EncodedSQL + ", fencepost.enter_row($1::pg_catalog.text, $2::bigint, $3::pg_catalog.text, $4::int, $5::int)"

// Enter fences a transaction that was begun elsewhere, by sqlc, gorm or the
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
//     before the transaction took its snapshot, else ErrInvalid; if it was
//     raised after that, or another Enter committed since, the result is
//     ErrUnavailable with SQLSTATE 40001 inside: roll back and begin again.
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
// for a claim that is not one of its own, which is the only check made there;
// ErrUnavailable.
func (d *DB[Tx]) Enter(ctx context.Context, tx Tx, claims ...guard.Claim) error {
	in := d.backend.in(tx)
	return d.enterWith(ctx, claims, func(sorted []guard.Claim) error {
		if own := d.callback(ctx); own != nil && own.claims != nil && d.backend.same(own.tx, tx) {
			return d.entered(ctx, own, sorted)
		}
		return d.enterRows(sorted, func(s statement) error {
			_, err := in.Exec(ctx, s.sql, s.args)
			return err
		})
	})
}

// has refuses claims other than those of the callback's transaction.
func (c *callback[Tx]) has(claims []guard.Claim) error {
	for _, claim := range claims {
		if !slices.Contains(c.claims, claim) {
			return guard.Invalid("claim", claim.Resource, "is not one of the claims of the InTx that Enter is called in")
		}
	}
	return nil
}

func (d *DB[Tx]) enterWith(ctx context.Context, claims []guard.Claim, enter func(sorted []guard.Claim) error) error {
	start := time.Now()
	sorted, err := sortClaims(claims)
	if err == nil {
		err = sqlkit.Ended(ctx, "enter", claims[0])
	}
	if err == nil {
		err = sqlkit.Interrupted(ctx, enter(sorted))
	}
	d.observeAll(ctx, claims, start, err)
	return err
}

// entered checks that the transaction of a callback is still fenced by claims.
func (d *DB[Tx]) entered(ctx context.Context, own *callback[Tx], claims []guard.Claim) error {
	if err := own.has(claims); err != nil {
		return err
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

func (d *DB[Tx]) enterRows(sorted []guard.Claim, send func(s statement) error) error {
	presents := ", (" + strings.ReplaceAll(presentSQL, "$1", "$7") + ")"
	for _, claim := range sorted {
		// Each adds its own claim: to add all with each would be cubic.
		if err := send(d.enterStatement(enterRowSQL+markSetSQL, claim, d.presented([]guard.Claim{claim}), presents)); err != nil {
			return enterFailure(claim, err)
		}
	}
	return nil
}

// Execer is a transaction of code that hides the driver's own: ent's Tx with
// the feature sql/execquery, bun's, sqlx's, [*sql.Tx].
type Execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// EnterOn is [DB.Enter] for a transaction that can only run a statement. tx
// must be a transaction: on anything else the fence would end with its own
// statement, which is refused with ErrInvalid. A [*sql.DB] or [*sql.Conn] is sent
// nothing; on a type that hides one, the mark may have been raised to the claim
// before the refusal. Inside a [DB.InTx] only its own claims are taken, whatever tx
// is. The statement has no placeholders, since such code has its own placeholder
// syntax.
func (d *DB[Tx]) EnterOn(ctx context.Context, tx Execer, claims ...guard.Claim) error {
	send := func(s statement) error {
		_, err := tx.ExecContext(ctx, inlined(s))
		return err
	}
	return d.enterWith(ctx, claims, func(sorted []guard.Claim) error {
		switch tx.(type) {
		case *sql.DB, *sql.Conn:
			return guard.Invalid("Execer", fmt.Sprintf("%T", tx), "is not a transaction: its statements commit by themselves")
		}
		if own := d.callback(ctx); own != nil && own.claims != nil { // tx may be its transaction
			if err := own.has(sorted); err != nil {
				return err
			}
		}
		if err := d.enterRows(sorted, send); err != nil {
			return err
		}
		// A statement that commits by itself has taken its marker with it.
		err := send(statement{sql: checkMarkerSQL, args: []any{d.marker}})
		if noMarker(err) || pgerr.State(err) == "42704" {
			return invalidUse{guard.Invalid("Execer", fmt.Sprintf("%T", tx), "is not a transaction: its statements commit by themselves; the mark may have been raised"), err}
		}
		return sqlkit.SchemaFailure("enter", claims[0], err)
	})
}

// inlined returns the text of s with its arguments as literals.
func inlined(s statement) string {
	literals := make([]string, len(s.args))
	for i, arg := range s.args {
		literal := fmt.Sprint(arg)
		if text, ok := arg.(string); ok {
			literal = "'" + strings.ReplaceAll(text, "'", "''") + "'"
			if strings.Contains(text, `\`) { // whatever the value of standard_conforming_strings
				literal = " E" + strings.ReplaceAll(literal, `\`, `\\`)
			}
		}
		literals[i] = literal
	}
	var b strings.Builder
	for text := s.sql; ; {
		before, after, more := strings.Cut(text, "$")
		b.WriteString(before)
		if !more {
			return b.String()
		}
		b.WriteString(literals[after[0]-'1']) // fewer than ten
		text = after[1:]
	}
}

// enterFailure is sqlkit.SchemaFailure for transactions that the caller began.
func enterFailure(claim guard.Claim, err error) error {
	if sqlkit.NotEncoded(err) {
		return invalidUse{sqlkit.ErrEncoding, err}
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
