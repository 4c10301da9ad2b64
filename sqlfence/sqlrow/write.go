package sqlrow

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
)

// Set has the values that a write assigns, by column. A value is sent as a
// parameter; an [Expr] is computed by the database.
type Set map[string]any

// Key has the values of a table's key columns, in the order of [NewTable].
type Key []any

// Dest is where [Table.Raise], [Table.Update] and [Table.Upsert] put what they
// read, by column: pointers that the driver's Scan takes. A column that may be
// NULL needs a pointer to a pointer, or a type such as [database/sql.Null]. After an
// error its contents are meaningless.
type Dest map[string]any

// Update writes set to the row with the given key, if the row's mark admits the claim,
// and makes the claim the row's mark, in one statement.
//
// A claim is admitted if its token is above the mark's or, under [guard.SameOrNewer],
// equal to it. If it is refused, a second statement reads why; the claim's reasons come
// before that of [Table.Where].
//
// A dest reads columns of the row as written. Update fences one row: for a set, to which
// an older holder may add a row, use sqlfence's InTx.
//
// Errors; where they say nothing else, the row was not written:
//   - guard.ErrStale, guard.ErrSpent, guard.ErrConflict: the mark refuses the claim.
//   - guard.ErrNotFound: no such row; with [ErrPredicate], one that Where excludes.
//   - guard.ErrUnfenced: the token column is NULL.
//   - guard.ErrMisdirected, guard.ErrInvalid: wrong input.
//   - guard.ErrUnavailable: try again. A row that another transaction has locked for 20 s,
//     or for the session's own lock_timeout, is one; the error names its session.
//   - guard.ErrSetup: a right is missing, or a trigger or policy leaves the row out; what
//     such a trigger wrote elsewhere stays.
//   - guard.ErrOutcomeUnknown: the response was lost, or a dest did not take its value (in
//     a transaction its own error, and the row is written): the row's mark shows it.
//   - errors of the statement, such as a violated constraint, with the driver's inside; or
//     the key is not unique, and the error says how many rows were written.
func (t *Table) Update(ctx context.Context, on Executor, claim guard.Claim, key Key, set Set, dest ...Dest) error {
	return t.run(ctx, on, updates, claim, key, set, dest)
}

// Upsert writes set to the row with the given key as [Table.Update] does, or inserts the
// row, with the claim as its mark, if there is none.
//
// The key must be the columns of a unique index, else the error is ErrInvalid. set applies
// to both cases, so an [Expr] in it cannot refer to the row's columns; it may be empty. A
// predicate of [Table.Where] is applied only to an existing row.
//
// A row that does not exist has no mark: whoever inserts it is admitted, under any token.
// After a DELETE an older holder's Upsert brings the row back. Keep the row instead: say
// in a column of your own that it is deleted, and let Where exclude it.
//
// The errors are those of Update.
func (t *Table) Upsert(ctx context.Context, on Executor, claim guard.Claim, key Key, set Set, dest ...Dest) error {
	return t.run(ctx, on, upserts, claim, key, set, dest)
}

// Raise makes the claim the mark of the row with the given key and reads the row as it is
// under that mark, in one statement.
//
// From then on no older holder can write the row, so that what a holder computes from what
// it read here overwrites no acknowledged update (P2); a comparison at write time only does
// not give this. dest may be nil, to raise only. Raise is idempotent.
//
// The mark is durable once Raise has returned, whatever the server's synchronous_commit
// is; in a transaction once that has committed.
//
// The errors are those of [Table.Update], and:
//   - guard.ErrInvalid, nothing sent: the table's rule is not [guard.SameOrNewer]; a raise
//     would use the token up.
//   - guard.ErrUnfenced: a trigger puts another mark in the claim's place.
func (t *Table) Raise(ctx context.Context, on Executor, claim guard.Claim, key Key, dest Dest) error {
	return t.run(ctx, on, raises, claim, key, nil, []Dest{dest})
}

// run makes a fenced statement, and tells the observer.
func (t *Table) run(ctx context.Context, on Executor, k kind, claim guard.Claim, key Key, set Set, dest []Dest) error {
	start := time.Now()
	mark, err := t.write(ctx, on, k, claim, key, set, dest)
	err = sqlkit.Interrupted(ctx, err)
	if t.observer != nil {
		op := guard.OpWrite
		if k == raises {
			op = guard.OpRaise
		}
		t.observer.Observe(ctx, guard.Event{Op: op, Surface: guard.SurfaceSQL, Claim: claim, Mark: mark, Duration: time.Since(start), Reason: guard.ReasonOf(err), Err: err})
	}
	return err
}

// write checks the input, sends the statement once and, if it wrote no row, asks for the
// reason. It returns the row's mark as far as it is known.
func (t *Table) write(ctx context.Context, on Executor, k kind, claim guard.Claim, key Key, set Set, dest []Dest) (guard.Mark, error) {
	key, err := t.check(ctx, k, claim, key)
	if err != nil {
		return guard.Mark{}, err
	}
	if on == nil {
		on = executor{}
	}
	commits, err := on.use(ctx) // asked before the statement: a connection that is lost shows no transaction
	if err != nil {
		return guard.Mark{}, err
	}
	s, err := t.statement(k, claim, key, set, dest, commits)
	if err != nil {
		return guard.Mark{}, err
	}
	if err := t.look(ctx, on); err != nil {
		return guard.Mark{}, err
	}
	n, err := s.send(ctx, on)
	switch {
	case err != nil:
		if pgerr.State(err) == pgerr.LockTimeout && commits {
			err = t.lockedBy(ctx, on, key, err)
		}
		return guard.Mark{}, t.failure(t.op(k), claim, err, commits)
	case n > 1:
		return guard.Mark{}, fmt.Errorf("sqlfence: %s: the key is not unique: %d rows were written", t.op(k), n)
	case n == 1 && k == raises && !s.kept:
		return guard.Mark{}, &guard.RejectedError{Reason: guard.ReasonUnfenced, Claim: claim,
			Cause: guard.Invalid("column "+t.token, claim.Token.String(), "did not keep the mark: a trigger or rule of the table put another value there")}
	case n == 1:
		return guard.Mark{Token: claim.Token, LeaseID: claim.LeaseID}, nil
	}
	mark, err := t.refusal(ctx, on, k, claim, key)
	if err != nil {
		return mark, err
	}
	return mark, t.leftOut(ctx, on, k, claim)
}

var (
	errReplaced = errors.New("the row admits the claim by now, and did not when the statement came: other writers replaced or changed it")
	errHeldBack = errors.New("the row admits the claim and was not written: a trigger leaves it out (as suppress_redundant_updates_trigger does), or a row-level security policy keeps it; or other writers replaced it meanwhile, and another try helps")
)

// leftOut is the error of a statement that did not write a row that admits its claim. It
// is not sent again: a trigger that left the row out may have written elsewhere, and
// would do so a second time.
func (t *Table) leftOut(ctx context.Context, on Executor, k kind, claim guard.Claim) error {
	var may bool
	each := func(scan func(dest ...any) error) error { return scan(&may) }
	switch err := on.query(ctx, leavesOutSQL, []any{t.layout.Name}, each); {
	case err != nil:
		return t.failure(t.op(k), claim, err, false)
	case may:
		return guard.Setup(t.op(k), claim, errHeldBack)
	}
	return guard.Unavailable(t.op(k), claim, errReplaced)
}

// check validates the input of a write before anything is sent, and returns the
// key to send.
func (t *Table) check(ctx context.Context, k kind, claim guard.Claim, key Key) (Key, error) {
	if k == raises && t.rule != guard.SameOrNewer {
		return nil, guard.Invalid("TableOptions.Rule", t.rule.String(), "must be guard.SameOrNewer for a raise, which would use the token up")
	}
	if err := claim.Validate(); err != nil {
		return nil, err
	}
	if len(key) != len(t.keys) {
		return nil, guard.Invalid("key", t.label, "has "+strconv.Itoa(len(t.keys))+" columns, "+strconv.Itoa(len(key))+" values were given")
	}
	for i, v := range key {
		if isNull(v) {
			return nil, guard.Invalid("key column "+t.keys[i], "NULL", "must not be NULL")
		}
	}
	if t.resource != nil {
		guarded, sent, err := t.resourceOf(key)
		if err != nil {
			return nil, err
		}
		if guarded != claim.Resource {
			return nil, &guard.MisdirectedError{Claimed: claim.Resource, Guarded: guarded}
		}
		key = sent
	}
	return key, sqlkit.Ended(ctx, "write "+t.label, claim)
}

// send sends the statement and returns how many rows it wrote.
func (s *statement) send(ctx context.Context, on Executor) (n int64, err error) {
	if len(s.dest) == 0 {
		return on.exec(ctx, s.sql, s.args)
	}
	err = on.query(ctx, s.sql, s.args, func(scan func(dest ...any) error) error { n++; return scan(s.dest...) })
	return n, err
}

// lockedBy adds to the error of a statement that waited in vain for the row who has it.
func (t *Table) lockedBy(ctx context.Context, on Executor, key Key, err error) error {
	var who string
	each := func(scan func(dest ...any) error) error { return scan(&who) }
	if look := on.query(ctx, t.lockersSQL(), key, each); look != nil || who == "" {
		return err
	}
	return fmt.Errorf("%w; the row is locked by %s, until its transaction ends", err, who)
}

// refusal reads why a statement changed nothing. The error is nil if the row as it is now would
// be written. The claim's reasons come first: a stale holder must stop, whatever happened to the
// row.
func (t *Table) refusal(ctx context.Context, on Executor, k kind, claim guard.Claim, key Key) (guard.Mark, error) {
	s, err := t.verdict(key)
	if err != nil {
		return guard.Mark{}, err
	}
	var token *int64
	var lease *string
	var found, satisfied bool
	err = on.query(ctx, s.sql, s.args, func(scan func(dest ...any) error) error {
		found = true
		return scan(&token, &lease, &satisfied)
	})
	var mark guard.Mark
	switch {
	case err != nil:
		return mark, t.failure(t.op(k), claim, err, false)
	case !found && k == upserts: // deleted since
		return mark, nil
	case !found:
		return mark, &guard.RejectedError{Reason: guard.ReasonNotFound, Claim: claim}
	case token == nil || lease == nil && t.lease != "": // NULL compares with nothing, so no write would ever be admitted
		return mark, &guard.RejectedError{Reason: guard.ReasonUnfenced, Claim: claim,
			Cause: guard.Invalid("column "+t.token, "NULL", "the mark must be NOT NULL, with DEFAULT 0 for the token and '' for the lease")}
	}
	mark.Token = guard.Token(*token)
	switch {
	case lease != nil:
		mark.LeaseID = *lease
	case mark.Token == claim.Token:
		mark.LeaseID = claim.LeaseID // the table does not record the lease
	}
	err = guard.Decide(t.rule, mark, claim)
	if err == nil && !satisfied {
		err = &guard.RejectedError{Reason: guard.ReasonNotFound, Claim: claim, Mark: mark, Cause: ErrPredicate}
	}
	return mark, err
}

// pointers returns the columns of dests in order and their destinations.
func pointers(dests []Dest) (columns []string, into []any, err error) {
	for _, d := range dests {
		for _, column := range columnsOf(d, nil) {
			if v := reflect.ValueOf(d[column]); v.Kind() != reflect.Pointer || v.IsNil() {
				return nil, nil, guard.Invalid("dest column "+column, fmt.Sprintf("%T", d[column]), "must be a pointer that is not nil")
			}
			columns, into = append(columns, column), append(into, d[column])
		}
	}
	return columns, into, nil
}
