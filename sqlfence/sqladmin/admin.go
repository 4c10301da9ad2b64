package sqladmin

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
)

const (
	// lockTimeout is how long a lock on a table is waited for: writers that come
	// later wait behind it.
	lockTimeout = 5 * time.Second
	// holdersTimeout is how long fenced transactions are waited for.
	holdersTimeout = 20 * time.Second
	commitTimeout  = 5 * time.Second
)

// Admin has the calls that set up and look after a database whose marks are in
// schema fencepost. Make one with [Pgx]; the zero value refuses every call. It is
// safe for concurrent use, and owns neither the pool nor its connections.
type Admin struct{ pool *pgxpool.Pool }

// Pgx returns the calls for the database of a pool. It sends nothing; with nil each call is
// ErrInvalid. A program on database/sql opens a pool for them, and closes it afterwards.
func Pgx(pool *pgxpool.Pool) *Admin { return &Admin{pool} }

// conn returns a connection without a transaction, to be released.
func (a *Admin) conn(ctx context.Context, op string) (*pgxpool.Conn, error) {
	switch {
	case a.pool == nil:
		return nil, guard.Invalid("pool", "nil", "must not be nil")
	case sqlkit.InTx(ctx, a.pool) && a.pool.Stat().MaxConns() == 1:
		return nil, sqlkit.ErrOnly
	}
	if err := sqlkit.Ended(ctx, op, guard.Claim{}); err != nil {
		return nil, err
	}
	return sqlkit.AcquirePgx(ctx, a.pool)
}

// transact runs do in a transaction and, unless it is read-only, commits it. failed
// turns an error before COMMIT, of the driver's, into one of guard's. The response to
// a COMMIT is awaited even if ctx has ended.
func (a *Admin) transact(ctx context.Context, op string, readOnly bool, do func(q sqlkit.Querier) error, failed func(error) error) error {
	c, err := a.conn(ctx, op)
	if err != nil && guard.ReasonOf(err) != guard.ReasonOther {
		return err // it says all already
	}
	if err != nil {
		return failed(err)
	}
	defer c.Release()
	mode := pgx.ReadWrite
	if readOnly {
		mode = pgx.ReadOnly
	}
	tx, err := c.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: mode})
	if err != nil {
		return failed(err)
	}
	err = do(sqlkit.Pgx{On: tx, Conn: c.Conn()})
	if err == nil && !readOnly && ctx.Err() != nil {
		err = pgerr.NotSent(context.Cause(ctx))
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	if err == nil && !readOnly {
		return sqlkit.Failure(op, guard.Claim{}, sqlkit.Replicated(c.Conn(), tx.Commit(ending)), true)
	}
	tx.Rollback(ending)
	if err == nil {
		return nil
	}
	return failed(err)
}

// change runs one statement on schema fencepost in a transaction of its own.
func (a *Admin) change(ctx context.Context, op string, claim guard.Claim, query string, args []any, dest ...any) error {
	return a.transact(ctx, op, false, func(q sqlkit.Querier) error {
		if len(dest) == 0 {
			_, err := q.Exec(ctx, query, args)
			return err
		}
		_, err := sqlkit.Row(ctx, q, query, args, dest...)
		return err
	}, func(err error) error { return sqlkit.SchemaFailure(op, claim, err) })
}

const pinSQL = "SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true), pg_catalog.set_config('jit', 'off', true)"

// inspect runs queries on the catalog. The server does not compile them: that
// takes seconds. After resolve, which sees the caller's search_path, names are
// resolved in pg_catalog only: a schema on the path may have functions, operators or
// types of another role, which would run with the caller's rights.
func (a *Admin) inspect(ctx context.Context, op string, resolve, read func(q sqlkit.Querier) error) error {
	return a.transact(ctx, op, true, func(q sqlkit.Querier) error {
		if err := resolve(q); err != nil {
			return err
		}
		if _, err := q.Exec(ctx, pinSQL, nil); err != nil {
			return err
		}
		return read(q)
	}, func(err error) error {
		if guard.ReasonOf(err) != guard.ReasonOther {
			return err
		}
		return sqlkit.SchemaFailure(op, guard.Claim{}, err)
	})
}

func nothing(sqlkit.Querier) error { return nil }

// wait returns for how many milliseconds the server may wait for others: until
// shortly before ctx ends or, if it does not say, as long as unbounded says.
func wait(ctx context.Context, unbounded time.Duration) int32 {
	if end, bounded := ctx.Deadline(); bounded {
		unbounded = min(time.Until(end)*7/8, 24*time.Hour)
	}
	return int32(max(unbounded, time.Millisecond).Milliseconds())
}

// readJSON reads one value of JSON, which every driver can read.
func readJSON(ctx context.Context, q sqlkit.Querier, op string, dest any, query string, args ...any) error {
	var text string
	if _, err := sqlkit.Row(ctx, q, query, args, &text); err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(text), dest); err != nil {
		return guard.Unavailable(op, guard.Claim{}, fmt.Errorf("a response of another version of the schema: %w", err))
	}
	return nil
}
