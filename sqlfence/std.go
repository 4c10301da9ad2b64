package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
)

// Std returns a [DB] on database/sql with a PostgreSQL driver. It sends
// nothing. opts may be nil; the error is an [*guard.InvalidError] that names
// the option.
//
// The reasons of a refusal come from the server's SQLSTATE, which is available
// from every driver whose errors have a SQLState method (pgx's stdlib, lib/pq);
// the mark in a [*guard.RejectedError] needs pgx's stdlib.
func Std(db *sql.DB, opts *Options) (*DB[*sql.Tx], error) {
	if db == nil {
		return nil, guard.Invalid("db", "nil", "must not be nil")
	}
	return newDB[*sql.Tx](stdBackend{db}, opts)
}

type stdBackend struct{ db *sql.DB }

func (b stdBackend) conn(ctx context.Context) (conn[*sql.Tx], error) {
	c, err := sqlkit.AcquireStd(ctx, b.db)
	if err != nil {
		return nil, err
	}
	return &stdConn{StdConn: c, cancel: func() {}}, nil
}

// hold: database/sql sends one statement at a time.
func (b stdBackend) hold(context.Context, func(context.Context, held[*sql.Tx], *pgxFirst) error) (conn[*sql.Tx], error) {
	return nil, nil
}

func (b stdBackend) single() bool { return b.db.Stats().MaxOpenConnections == 1 }

func (b stdBackend) exhausted() bool {
	s := b.db.Stats()
	return s.MaxOpenConnections > 0 && s.InUse >= s.MaxOpenConnections
}

func (b stdBackend) pool() any { return b.db }

func (b stdBackend) in(tx *sql.Tx) sqlkit.Querier { return sqlkit.Std{On: tx} }

func (b stdBackend) same(x, y *sql.Tx) bool { return x == y }

// stdConn is a connection of the pool.
type stdConn struct {
	sqlkit.StdConn
	handle *sql.Tx
	cancel context.CancelFunc // ends the handle
	marker string
}

func (c *stdConn) tx() *sql.Tx { return c.handle }

func (c *stdConn) in() sqlkit.Querier { return sqlkit.Std{On: c.handle} }

func (c *stdConn) begun() bool { return true }

func (c *stdConn) start(context.Context) error { return nil }

func (c *stdConn) committed() bool { return false }

// begin detaches the transaction from ctx: database/sql would roll back by
// itself when ctx ends, even in the middle of a COMMIT. The statements inside
// still take the caller's context.
func (c *stdConn) begin(ctx context.Context, how txMode, first ...statement) (err error) {
	detached, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	defer stop()
	c.cancel, c.marker = cancel, how.marker
	if c.handle, err = c.Pooled.BeginTx(detached, &sql.TxOptions{Isolation: how.level}); err != nil {
		return err
	}
	for _, s := range first {
		if s.dest == nil {
			_, err = c.handle.ExecContext(ctx, s.sql, s.args...)
		} else {
			err = c.handle.QueryRowContext(ctx, s.sql, s.args...).Scan(s.dest...)
		}
		if err != nil {
			return err
		}
	}
	if !stop() {
		return pgerr.NotSent(context.Cause(ctx))
	}
	return nil
}

func (c *stdConn) commit(ctx context.Context, bound *commitBound) error {
	// A callback's own COMMIT or ROLLBACK in SQL bypasses database/sql.
	if err := c.locked(committable); err != nil {
		return err
	}
	bounded := bound.context(ctx)
	stop := context.AfterFunc(bounded, c.cancel)
	defer stop()
	// The driver may be wrapped by another one, and knows nothing of COMMIT AND
	// CHAIN: only the server does. It is a separate round trip here, because
	// database/sql has no pipeline; on pgx it costs none.
	if c.marker != "" {
		var same bool
		if _, err := sqlkit.Row(bounded, sqlkit.Std{On: c.handle}, markedSQL, []any{c.marker}, &same); err != nil {
			return unchecked(err)
		}
		if !same {
			return errEnded
		}
	}
	err := c.handle.Commit()
	switch {
	case errors.Is(err, sql.ErrTxDone):
		return errEnded
	case err != nil && err.Error() == commitRollbackText:
		return sqlkit.ErrAborted
	case err == nil:
		c.handle = nil // nothing to roll back
	}
	return c.Replicated(err)
}

// unchecked is the error of the statement before a COMMIT, which was not sent.
func unchecked(err error) error {
	switch {
	case errors.Is(err, sql.ErrTxDone):
		return errEnded
	case pgerr.State(err) == "25P02": // in_failed_sql_transaction
		return sqlkit.ErrAborted
	}
	return pgerr.NotSent(err)
}

// commitRollbackText is what pgx's stdlib and lib/pq call a COMMIT that the
// server turned into a ROLLBACK; neither exports it through database/sql.
const commitRollbackText = "commit unexpectedly resulted in rollback"

func (c *stdConn) gone() bool {
	return c.locked(func(native *pgx.Conn) error {
		if native.IsClosed() {
			return pgconn.ErrConnClosed
		}
		return nil
	}) != nil
}

// locked looks at pgx's own connection, if there is one, under the lock of
// database/sql: rows that the callback has left open are closed by another
// goroutine when their context ends.
func (c *stdConn) locked(look func(*pgx.Conn) error) error {
	if c.Native == nil {
		return nil
	}
	return c.Pooled.Raw(func(any) error { return look(c.Native) })
}

func (c *stdConn) release() {
	if c.handle != nil {
		timer := time.AfterFunc(rollbackTimeout, c.cancel)
		defer timer.Stop()
		c.handle.Rollback() // a connection that cannot roll back is closed, and the server rolls back
	}
	c.cancel()
	c.Pooled.Close()
}
