package sqlfence

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// Set is what an update assigns, by column. A value is sent as a parameter; an
// [Expr] is computed by the database.
type Set map[string]any

// Key is the values of a table's key columns, in the order of [NewTable].
type Key []any

// maxReplaced bounds how often a write is repeated because the row that
// refused it was gone, or younger, when its mark was read.
const maxReplaced = 3

// Update writes set to the row with the given key if, in the same statement,
// the claim is above the row's mark (or equal to it, under
// [guard.SameOrNewer]); the claim becomes the row's mark. q is a [DB], or a
// transaction through [DB.In].
//
// An update that applies is one statement and costs what the same UPDATE
// without a fence costs. Only one that changed no row is followed by a read
// that tells why.
//
// The errors: [*guard.RejectedError] with ErrStale, ErrSpent, ErrConflict,
// ErrNotFound (no such row), ErrUnfenced (the token column is NULL);
// ErrInvalid for malformed input, nothing sent; ErrUnavailable, nothing
// written; ErrOutcomeUnknown if the answer was lost: the row's mark tells.
// Errors of the statement itself, such as a violated constraint, are passed on
// with the driver's error inside. An update that returns an error other than
// ErrOutcomeUnknown has changed nothing; but if the key turns out not to be
// unique, the error says how many rows were written.
//
// Update fences one row. It cannot stop an older holder from inserting another
// row into a set: use [DB.InTx] for sets.
func (t *Table) Update(ctx context.Context, q Querier, claim guard.Claim, key Key, set Set) error {
	start := time.Now()
	mark, err := t.update(ctx, q, claim, key, set)
	q.observe(ctx, guard.Event{Op: guard.OpWrite, Claim: claim, Mark: mark, Duration: time.Since(start), Err: err})
	return err
}

func (t *Table) update(ctx context.Context, q Querier, claim guard.Claim, key Key, set Set) (guard.Mark, error) {
	op := t.op
	if err := t.check(claim, key); err != nil {
		return guard.Mark{}, err
	}
	sql, args, err := t.updateSQL(claim, key, set)
	if err != nil {
		return guard.Mark{}, err
	}
	for range maxReplaced {
		n, err := q.exec(ctx, sql, args)
		if err != nil {
			return guard.Mark{}, tableFailure(op, claim, err, q.autocommit())
		}
		switch {
		case n == 1:
			return guard.Mark{Token: claim.Token, LeaseID: claim.LeaseID}, nil
		case n > 1:
			return guard.Mark{}, fmt.Errorf("sqlfence: %s: the key is not unique: %d rows were written", op, n)
		}
		mark, err := t.mark(ctx, q, op, claim, key)
		if err != nil {
			return mark, err
		}
		if err := guard.Decide(t.rule, mark, claim); err != nil {
			return mark, err
		}
		// The row that refused was replaced before its mark was read. Nothing
		// was written, so the statement may be sent again.
	}
	return guard.Mark{}, guard.Unavailable(op, claim, fmt.Errorf("%d times the row was not written although its mark admits the claim: it was replaced, or a trigger or policy holds it back", maxReplaced))
}

// mark reads the row's mark after a write that changed nothing.
func (t *Table) mark(ctx context.Context, q Querier, op string, claim guard.Claim, key Key) (guard.Mark, error) {
	var token *int64
	var lease *string
	found, err := q.row(ctx, t.verdict, key, &token, &lease)
	switch {
	case err != nil:
		return guard.Mark{}, tableFailure(op, claim, err, false)
	case !found:
		return guard.Mark{}, &guard.RejectedError{Reason: guard.ReasonNotFound, Claim: claim}
	case token == nil || lease == nil && t.lease != "":
		// NULL compares with nothing: no write would ever be admitted.
		return guard.Mark{}, &guard.RejectedError{Reason: guard.ReasonUnfenced, Claim: claim,
			Cause: guard.Invalid("column "+t.token, "NULL", "the mark must be NOT NULL, with DEFAULT 0 for the token and '' for the lease")}
	}
	mark := guard.Mark{Token: guard.Token(*token)}
	switch {
	case lease != nil:
		mark.LeaseID = *lease
	case mark.Token == claim.Token:
		mark.LeaseID = claim.LeaseID // the table does not say whose it is
	}
	return mark, nil
}

func placeholder(n int) string { return "$" + strconv.Itoa(n) }

func itoa(n int) string { return strconv.Itoa(n) }
