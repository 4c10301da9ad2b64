package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
)

// Std returns a [DB] on database/sql with a PostgreSQL driver. It sends
// nothing. opts may be nil; the error is an [*guard.InvalidError] that names
// the option.
//
// The reasons of a refusal come from the server's SQLSTATE, which is available
// from every driver whose errors have a SQLState method (pgx's stdlib);
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
	handle   *sql.Tx
	cancel   context.CancelFunc // ends the handle
	marked   bool
	released bool
}

func (c *stdConn) tx() *sql.Tx { return c.handle }

func (c *stdConn) in() sqlkit.Querier { return sqlkit.Std{On: c.handle} }

// begin detaches the transaction from ctx: database/sql would roll back by
// itself when ctx ends, even in the middle of a COMMIT. The statements inside
// still take the caller's context.
func (c *stdConn) begin(ctx context.Context, level sql.IsolationLevel, marked bool, first ...statement) (err error) {
	detached, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	defer stop()
	c.cancel, c.marked = cancel, marked
	if c.handle, err = c.Pooled.BeginTx(detached, &sql.TxOptions{Isolation: level}); err != nil {
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

// commit looks for the marker on a round trip of its own: database/sql has no pipeline, and
// only the server knows of a COMMIT in the callback's SQL.
func (c *stdConn) commit(ctx context.Context) (seen bool, err error) {
	stop := context.AfterFunc(ctx, c.giveUp)
	defer stop()
	if c.marked {
		if s, _ := c.look(); s == txNone {
			return false, errEnded
		}
		_, err := sqlkit.Row(ctx, sqlkit.Std{On: c.handle}, markedSQL, nil, &seen)
		switch {
		case errors.Is(err, sql.ErrTxDone), err == nil && !seen:
			return false, errEnded
		case pgerr.State(err) == "25P02": // in_failed_sql_transaction
			return false, sqlkit.ErrAborted
		case pgerr.Unsent(err) && ctx.Err() == nil: // the connection is busy
			return false, invalidUse{errUnread, err}
		case err != nil:
			return false, pgerr.NotSent(err)
		}
	}
	err = c.handle.Commit()
	switch {
	case errors.Is(err, sql.ErrTxDone):
		return false, errEnded
	case err != nil && err.Error() == commitRollbackText:
		return false, sqlkit.ErrAborted
	}
	return seen, c.Replicated(err)
}

// commitRollbackText is what pgx's stdlib and other drivers call a COMMIT that the
// server turned into a ROLLBACK; neither exports it through database/sql.
const commitRollbackText = "commit unexpectedly resulted in rollback"

// look is what pgx's connection shows. If the driver is hidden, a transaction may be open.
func (c *stdConn) look() (s txStatus, alive bool) {
	if c.Native == nil {
		return txSome, true
	}
	seen := func(any) error { s, alive = statusOf(c.Native), !c.Native.IsClosed(); return nil }
	if c.Pooled.Raw(seen) != nil { // database/sql has closed it
		seen(nil)
	}
	return s, alive
}

// status: through a handle that the callback closed it could send nothing more, unless that is
// how database/sql took the loss of the session.
func (c *stdConn) status(ctx context.Context) txStatus {
	stop := context.AfterFunc(ctx, c.giveUp)
	defer stop()
	s, alive := c.look()
	if s == txNone && alive {
		if _, err := c.handle.ExecContext(ctx, "SELECT 1"); errors.Is(err, sql.ErrTxDone) {
			return txUnseen
		}
	}
	return s
}

// giveUp ends the handle, and cuts the session: database/sql waits for a goroutine of the
// callback's that is in a statement.
func (c *stdConn) giveUp() {
	c.cancel()
	if c.Native != nil {
		c.Native.PgConn().Conn().Close()
	}
}

func (c *stdConn) rollback(ctx context.Context) outcome {
	if c.handle == nil {
		return undone
	}
	stop := context.AfterFunc(ctx, c.giveUp)
	defer stop()
	if err := c.handle.Rollback(); err != nil && !errors.Is(err, sql.ErrTxDone) { // it also closes rows that the callback left open
		return undoneByLoss
	}
	return undone
}

// pipeline: database/sql sends one statement at a time.
func (c *stdConn) pipeline(context.Context, statement, string, []any) pipelined { return pipelined{} }

func (c *stdConn) release() {
	if c.released {
		return
	}
	c.released = true
	if c.handle != nil {
		timer := time.AfterFunc(releaseTimeout, c.giveUp)
		defer timer.Stop()
		c.handle.Rollback() // a connection that cannot roll back is closed, and the server rolls back
	}
	c.cancel()
	c.Pooled.Close()
}
