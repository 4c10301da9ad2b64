package sqlrow

import (
	"context"
	"fmt"
	"reflect"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
)

// Dest is where [Table.Raise], [Table.Update] and [Table.Upsert] put what they
// read, by column: pointers that the driver's Scan takes. A column that may be
// NULL needs a pointer to a pointer, or a type such as [database/sql.Null].
type Dest map[string]any

// Raise makes the claim the mark of the row with the given key and reads the
// row as it is under that mark, in one statement. From then on no older holder
// can write the row, so that what a holder computes from what it read here
// overwrites no acknowledged update (P2); a comparison at write time only does
// not give this. dest may be nil, to raise only. Calling it again with the same
// claim reads again.
//
// The mark is durable once Raise has returned, whatever the server's
// synchronous_commit default is. In a transaction ([DB.In]) both hold from its
// COMMIT on, which is made synchronous; until then the row is locked, so that
// older holders wait.
//
// The table's rule must be [guard.SameOrNewer], else the error is ErrInvalid,
// nothing sent: under [guard.OncePerToken] the raise would use the token up. The
// other errors are those of [Table.Update]; if there is no row, nothing is raised.
// If a trigger replaces the claim with another mark, the error is ErrUnfenced. If a
// dest cannot take its column's value, the mark may have been raised:
// ErrOutcomeUnknown, except in a transaction, where the caller decides. After an
// error the contents of dest are meaningless.
func (t *Table) Raise(ctx context.Context, q Querier, claim guard.Claim, key Key, dest Dest) error {
	start := time.Now()
	mark, err := t.raise(ctx, q, claim, key, dest)
	err = sqlkit.Interrupted(ctx, err)
	q.observe(ctx, guard.Event{Op: guard.OpRaise, Claim: claim, Mark: mark, Duration: time.Since(start), Err: err})
	return err
}

func (t *Table) raise(ctx context.Context, q Querier, claim guard.Claim, key Key, dest Dest) (guard.Mark, error) {
	if t.rule != guard.SameOrNewer {
		return guard.Mark{}, guard.Invalid("TableOptions.Rule", t.rule.String(), "must be guard.SameOrNewer for a raise, which would use the token up")
	}
	s, key, err := t.prepare(ctx, q, raises, claim, key, nil, dest)
	if err != nil {
		return guard.Mark{}, err
	}
	var commit *string
	var raised bool
	mark, err := t.sendReturning(ctx, q, raises, claim, key, s, func(scan func(dest ...any) error) error {
		return scan(append([]any{&commit, &raised}, s.dest...)...)
	})
	if err == nil && !raised {
		err = &guard.RejectedError{Reason: guard.ReasonUnfenced, Claim: claim,
			Cause: guard.Invalid("column "+t.token, claim.Token.String(), "did not keep the mark: a trigger or rule of the table put another value there")}
		mark = guard.Mark{}
	}
	return mark, err
}

// pointers returns the columns in order and their destinations.
func (d Dest) pointers() (columns []string, into []any, err error) {
	columns = columnsOf(d, nil)
	for _, column := range columns {
		if v := reflect.ValueOf(d[column]); v.Kind() != reflect.Pointer || v.IsNil() {
			return nil, nil, guard.Invalid("dest column "+column, fmt.Sprintf("%T", d[column]), "must be a pointer that is not nil")
		}
		into = append(into, d[column])
	}
	return columns, into, nil
}

// liftCommit makes the commit of the statement that returns it wait for the
// disk where the server's default would not: what counts is the setting at the
// commit (PostgreSQL documentation, 20.5.1, synchronous_commit).
const liftCommit = "CASE WHEN pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.=) ANY (ARRAY['off', 'local'])" +
	" THEN pg_catalog.set_config('synchronous_commit', 'on', true) END"

// raised is the condition that a written row has the claim as its mark.
func (t *Table) raised() string {
	raised := t.token + equals + t.offeredToken
	if t.lease != "" {
		raised += " AND " + t.lease + equals + t.offeredLease + ` COLLATE pg_catalog."C"`
	}
	return raised
}
