package sqlrow

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
)

// Set has the values that a write assigns, by column. A value is sent as a
// parameter; an [Expr] is computed by the database.
type Set map[string]any

// Key has the values of a table's key columns, in the order of [NewTable].
type Key []any

// maxReplaced bounds how often a write is repeated because the row that refused
// it was gone, or replaced by a newer one, when its mark was read.
const maxReplaced = 3

// Update writes set to the row with the given key if, in the same statement,
// the claim is above the row's mark (or equal to it, under
// [guard.SameOrNewer]); the claim becomes the row's mark. q is a [DB], or a
// transaction through [DB.In]. With a dest, at most one, it reads columns of
// the row as written.
//
// An update that applies is one statement and costs what the same UPDATE
// without a fence costs. Only an update that changed no row is followed by a
// read to find out why.
//
// The errors: [*guard.RejectedError] with ErrStale, ErrSpent, ErrConflict,
// ErrNotFound (no such row or, with [ErrPredicate], one that [Table.Where]
// excludes), ErrUnfenced (the token column is NULL); ErrInvalid for malformed input, nothing sent;
// ErrUnavailable, nothing written; ErrSetup if a right is missing, or a trigger or
// policy leaves the row out; ErrOutcomeUnknown if the response was lost, or a
// dest cannot take its column's value: the row's mark shows the outcome. Errors
// of the statement itself, such as a violated constraint, are passed on with the
// driver's error inside. An update that returns an error other than
// ErrOutcomeUnknown has changed nothing, with two exceptions: if the key turns
// out not to be unique, the error says how many rows were written; and in a
// transaction, if a dest cannot take its value, the error is the driver's, and
// the caller decides. After an error the contents of dest are meaningless.
//
// If several reasons apply, those of the claim come first: a stale holder gets
// ErrStale even if the predicate excludes the row.
//
// Update fences one row. It cannot stop an older holder from adding another row
// to a set: use sqlfence's InTx for sets.
func (t *Table) Update(ctx context.Context, q Querier, claim guard.Claim, key Key, set Set, dest ...Dest) error {
	return t.write(ctx, q, updates, claim, key, set, dest)
}

// write is a fenced statement on one row.
func (t *Table) write(ctx context.Context, q Querier, k kind, claim guard.Claim, key Key, set Set, dest []Dest) error {
	return t.observed(ctx, q, claim, func() (guard.Mark, error) {
		var into Dest
		switch len(dest) {
		case 0:
		case 1:
			into = dest[0]
		default:
			return guard.Mark{}, guard.Invalid("dest", strconv.Itoa(len(dest)), "must have at most one element")
		}
		s, key, err := t.prepare(ctx, q, k, claim, key, set, into)
		if err != nil {
			return guard.Mark{}, err
		}
		if len(into) == 0 {
			return t.untilDecided(ctx, q, k, claim, key, func() (int64, error) { return q.exec(ctx, s.sql, s.args) })
		}
		return t.sendReturning(ctx, q, k, claim, key, s, func(scan func(dest ...any) error) error { return scan(s.dest...) })
	})
}

// prepare checks the input of a statement on one row and returns the statement
// and its key.
func (t *Table) prepare(ctx context.Context, q Querier, k kind, claim guard.Claim, key Key, set Set, dest Dest) (s statement, sent Key, err error) {
	if sent, err = t.check(ctx, claim, key); err != nil {
		return s, sent, err
	}
	columns, into, err := dest.pointers()
	if err != nil {
		return s, sent, err
	}
	if s, err = t.statement(k, claim, sent, set, columns); err != nil {
		return s, sent, err
	}
	s.dest = into
	return s, sent, q.usable(ctx, t)
}

// sendReturning is untilDecided for a statement that returns the row.
func (t *Table) sendReturning(ctx context.Context, q Querier, k kind, claim guard.Claim, key Key, s statement, each sqlkit.EachRow) (guard.Mark, error) {
	mark, err := t.untilDecided(ctx, q, k, claim, key, func() (n int64, err error) {
		err = q.query(ctx, s.sql, s.args, func(scan func(dest ...any) error) error { n++; return each(scan) })
		return n, err
	})
	if misread := (sqlkit.Unreadable{}); errors.As(err, &misread) && !q.autocommit() {
		return guard.Mark{}, fmt.Errorf("sqlfence: %s: %w", t.op(k), misread)
	}
	return mark, err
}

func (t *Table) observed(ctx context.Context, q Querier, claim guard.Claim, write func() (guard.Mark, error)) error {
	start := time.Now()
	mark, err := write()
	err = sqlkit.Interrupted(ctx, err)
	q.observe(ctx, guard.Event{Op: guard.OpWrite, Claim: claim, Mark: mark, Duration: time.Since(start), Err: err})
	return err
}

// untilDecided repeats send, which writes the row and returns how many rows it
// wrote, until the row is written or its mark says why not.
func (t *Table) untilDecided(ctx context.Context, q Querier, k kind, claim guard.Claim, key Key, send func() (int64, error)) (guard.Mark, error) {
	var marks []guard.Mark
	for range maxReplaced {
		n, err := send()
		switch {
		case err != nil:
			return guard.Mark{}, t.failure(t.op(k), claim, err, q.autocommit())
		case n == 1:
			return guard.Mark{Token: claim.Token, LeaseID: claim.LeaseID}, nil
		case n > 1:
			return guard.Mark{}, t.notUnique(k, n)
		}
		// If the row as it is now admits the claim, the row that refused it was
		// replaced since. Nothing was written, so it may be sent again.
		mark, err := t.refusal(ctx, q, k, claim, key)
		if err != nil {
			return mark, err
		}
		marks = append(marks, mark)
	}
	if len(slices.Compact(marks)) > 1 {
		return guard.Mark{}, guard.Unavailable(t.op(k), claim, errReplaced)
	}
	return guard.Mark{}, guard.Setup(t.op(k), claim, errHeldBack) // the mark was the same each time
}

var (
	errReplaced = fmt.Errorf("other writers replaced the row in each of %d attempts", maxReplaced)
	errHeldBack = fmt.Errorf("the row admits the claim and was not written in %d attempts: a trigger leaves it out (as suppress_redundant_updates_trigger does) or changes its key, or a row-level security policy keeps it", maxReplaced)
)

func (t *Table) notUnique(k kind, n int64) error {
	return fmt.Errorf("sqlfence: %s: the key is not unique: %d rows were written", t.op(k), n)
}

// refusal reads why a statement changed nothing. The error is nil if the row as
// it is now would be written.
func (t *Table) refusal(ctx context.Context, q Querier, k kind, claim guard.Claim, key Key) (guard.Mark, error) {
	s, err := t.verdict(key)
	if err != nil {
		return guard.Mark{}, err
	}
	var r rowState
	found, err := row(ctx, q, s.sql, s.args, &r.token, &r.lease, &r.satisfied)
	switch {
	case err != nil:
		return guard.Mark{}, t.failure(t.op(k), claim, err, false)
	case found:
		return t.decide(r, claim)
	case k == upserts: // deleted since
		return guard.Mark{}, nil
	}
	return guard.Mark{}, &guard.RejectedError{Reason: guard.ReasonNotFound, Claim: claim}
}

// rowState is the state in the database that decides about a write.
type rowState struct {
	token     *int64
	lease     *string
	satisfied bool
}

// decide compares a claim with a row. The claim's reasons come first: a stale
// holder must stop, whatever happened to the row.
func (t *Table) decide(r rowState, claim guard.Claim) (guard.Mark, error) {
	if r.token == nil || r.lease == nil && t.lease != "" {
		// NULL compares with nothing, so no write would ever be admitted.
		return guard.Mark{}, &guard.RejectedError{Reason: guard.ReasonUnfenced, Claim: claim,
			Cause: guard.Invalid("column "+t.token, "NULL", "the mark must be NOT NULL, with DEFAULT 0 for the token and '' for the lease")}
	}
	mark := guard.Mark{Token: guard.Token(*r.token)}
	switch {
	case r.lease != nil:
		mark.LeaseID = *r.lease
	case mark.Token == claim.Token:
		mark.LeaseID = claim.LeaseID // the table does not record the lease
	}
	if err := guard.Decide(t.rule, mark, claim); err != nil {
		return mark, err
	}
	if !r.satisfied {
		return mark, &guard.RejectedError{Reason: guard.ReasonNotFound, Claim: claim, Mark: mark, Cause: ErrPredicate}
	}
	return mark, nil
}

// Upsert writes set to the row with the given key as [Table.Update] does, or
// inserts the row, with the claim as its mark, if there is none. It is one
// statement, INSERT ... ON CONFLICT DO UPDATE, with the dest and the errors of
// Update; the key must be the columns of a unique index, else the error is
// ErrInvalid. set applies to both cases, so an [Expr] in it cannot refer to the
// row's columns; it may be empty. Columns that set does not name get their
// default in an inserted row and keep their value in an existing row.
//
// A row that does not exist has no mark: whoever inserts it is admitted, under
// any token. So P1 holds from the row's first insert until a DELETE, after which
// an older holder's Upsert brings the row back. Keep the row instead, with its mark:
// say in a column of your own that it is deleted, and let [Table.Where] exclude it.
// A predicate of Where is applied only to an existing row.
func (t *Table) Upsert(ctx context.Context, q Querier, claim guard.Claim, key Key, set Set, dest ...Dest) error {
	return t.write(ctx, q, upserts, claim, key, set, dest)
}
