package sqlfence

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
)

// maxWrites bounds a batch: its statements and its results are held in memory
// and in the connection's buffers at once.
const maxWrites = 1000

// Batch runs the writes, in order, in one fenced transaction and returns how
// many rows each changed. It is [DB.InTx] for work that is known in advance: on
// pgx BEGIN, the fence, the writes and COMMIT are one round trip; on
// database/sql, which has no pipeline, each is a round trip of its own. Either
// all of the writes are committed or none; a write that changes no row is not an
// error, so use constraints for what must hold. A write is made with [Raw]; any
// rows that it returns are discarded. It must be one statement and begin with
// one of the words SELECT, INSERT, UPDATE, DELETE, MERGE, WITH, VALUES, TABLE,
// TRUNCATE, LOCK, SET, NOTIFY, CALL or DO: none of these can end the transaction
// or copy from or to the client. Comments may stand before it.
//
// Since the COMMIT travels with the writes, a context that ends in the meantime, or
// a lost connection, is ErrOutcomeUnknown on pgx. The other errors are those of
// InTx; an error of a write is passed on with the driver's inside, and nothing
// was committed. Nothing is retried, except that a batch whose claim is above
// the mark, refused as a whole before its first write, is sent again after the
// raise.
func (d *DB[Tx]) Batch(ctx context.Context, claim guard.Claim, writes ...Expr) ([]int64, error) {
	start := time.Now()
	rows, err := d.batch(ctx, claim, writes)
	err = sqlkit.Interrupted(ctx, err)
	d.observe(ctx, guard.Event{Op: guard.OpTransaction, Claim: claim, Mark: markOf(claim, err), Duration: time.Since(start), Err: err})
	return rows, err
}

func (d *DB[Tx]) batch(ctx context.Context, claim guard.Claim, writes []Expr) ([]int64, error) {
	const op = "fenced batch"
	if err := claim.Validate(); err != nil {
		return nil, err
	}
	switch {
	case len(writes) == 0:
		return nil, guard.Invalid("writes", "", "must have at least one write")
	case len(writes) > maxWrites:
		return nil, guard.Invalid("writes", itoa(len(writes)), "must be at most "+itoa(maxWrites))
	case d.callback(ctx) != nil:
		return nil, guard.Invalid("Batch", claim.Resource, "is called inside InTx; write through its transaction instead")
	}
	for i, w := range writes {
		if err := w.checkStatement("writes[" + itoa(i) + "]"); err != nil {
			return nil, err
		}
	}
	if err := sqlkit.Ended(ctx, op, claim); err != nil {
		return nil, err
	}
	var last error
	for range maxEnter {
		rows, committing, err := d.batchOnce(ctx, d.enterStatement(enterSQL+markSetSQL, claim, d.presented([]guard.Claim{claim}), presentsSQL), writes)
		switch {
		case err == nil:
			return rows, nil
		case pgerr.State(err) != pgerr.MustRaise:
			err = batchFailure(op, claim, err, committing)
			if !committing {
				err = d.succeeded(ctx, []guard.Claim{claim}, err, false)
			}
			return nil, err
		}
		last = err
		if err := d.raise(ctx, claim, false); err != nil {
			return nil, err
		}
	}
	return nil, guard.Unavailable(op, claim, last)
}

// batchOnce takes a round trip for each write where the driver has no pipeline.
func (d *DB[Tx]) batchOnce(ctx context.Context, first statement, writes []Expr) (rows []int64, committing bool, err error) {
	c, err := d.conn(ctx)
	if err != nil {
		return nil, false, err
	}
	defer c.release()
	if whole, ok := c.(pipeliner); ok {
		return whole.batch(ctx, first, writes)
	}
	if err := c.begin(ctx, readCommitted, first); err != nil {
		return nil, false, err
	}
	in := d.backend.in(c.tx())
	for _, w := range writes {
		n, err := in.Exec(ctx, w.sql, w.args)
		if err != nil {
			return nil, false, err
		}
		rows = append(rows, n)
	}
	if ctx.Err() != nil {
		return nil, false, context.Cause(ctx)
	}
	return rows, true, c.commit(ctx, d.commits)
}

// checkStatement accepts only what cannot end the transaction before its COMMIT,
// since later writes would then not be fenced. The first word determines the
// statement in the grammar, so the list has those known to be harmless; a COMMIT
// in what CALL and DO run is an error inside a transaction.
func (w Expr) checkStatement(field string) error {
	switch strings.ToUpper(firstWord(w.sql)) {
	case "SELECT", "INSERT", "UPDATE", "DELETE", "MERGE", "WITH", "VALUES", "TABLE", "TRUNCATE", "LOCK", "SET", "NOTIFY", "CALL", "DO":
	default:
		return guard.Invalid(field, w.sql, "must begin with SELECT, INSERT, UPDATE, DELETE, MERGE, WITH, VALUES, TABLE, TRUNCATE, LOCK, SET, NOTIFY, CALL or DO; run others inside InTx")
	}
	if !oneStatement(w.sql) { // the simple protocol takes several
		return guard.Invalid(field, w.sql, "must be one statement, without an open quote or comment")
	}
	return nil
}

// batchFailure is failure for a batch, in which the writes may name what does
// not exist.
func batchFailure(op string, claim guard.Claim, err error, committing bool) error {
	var pg *pgconn.PgError
	if pgerr.Undefined(err) && errors.As(err, &pg) && (strings.Contains(pg.Message, "fencepost.enter(") || strings.Contains(pg.Message, `schema "fencepost"`)) {
		return sqlkit.SchemaFailure(op, claim, err)
	}
	if pgerr.State(err) == pgerr.Privilege && errors.As(err, &pg) && !strings.Contains(pg.Message, "function enter") && !strings.Contains(pg.Message, "schema fencepost") {
		return sqlkit.Denied(op, claim, err)
	}
	var argument sqlkit.Unsendable
	if errors.As(err, &argument) {
		return fmt.Errorf("sqlfence: %s: %w: %w", op, guard.ErrInvalid, err)
	}
	return sqlkit.Failure(op, claim, err, committing)
}
