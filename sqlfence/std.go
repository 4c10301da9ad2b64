package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/migrate"
	"github.com/fencepost-go/fencepost/internal/pgerr"
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
	pooled, err := b.db.Conn(ctx)
	if err != nil {
		return nil, pgerr.NotSent(err)
	}
	c := &stdConn{stdQuerier: stdQuerier{pooled}, pooled: pooled, cancel: func() {}}
	pooled.Raw(func(driverConn any) error {
		if d, ok := driverConn.(interface{ Conn() *pgx.Conn }); ok {
			c.native = d.Conn()
		}
		return nil
	})
	if c.native != nil && busy(c.native) {
		c.release()
		return nil, errBusy
	}
	if err := encoded(c.native); err != nil {
		c.release()
		return nil, err
	}
	return c, nil
}

func (b stdBackend) single() bool { return b.db.Stats().MaxOpenConnections == 1 }

func (b stdBackend) exhausted() bool {
	s := b.db.Stats()
	return s.MaxOpenConnections > 0 && s.InUse >= s.MaxOpenConnections
}

func (b stdBackend) in(tx *sql.Tx) querier { return stdQuerier{tx} }

func (b stdBackend) same(x, y *sql.Tx) bool { return x == y }

// stdConn is a connection of the pool.
type stdConn struct {
	stdQuerier
	pooled *sql.Conn
	native *pgx.Conn // the one under it, if the driver is pgx's stdlib
	handle *sql.Tx
	cancel context.CancelFunc // ends the handle
	marker string
}

func (c *stdConn) tx() *sql.Tx { return c.handle }

func (c *stdConn) migrations() migrate.Conn { return migrate.Std(c.pooled) }

// exec and query prefer pgx's own connection, which tells whether anything was
// sent: pgx's stdlib returns ErrBadConn, which should mean that nothing was,
// for errors that do not mean that.
func (c *stdConn) exec(ctx context.Context, query string, args []any) (int64, error) {
	if c.native != nil {
		return pgxQuerier{c.native, c.native}.exec(ctx, query, args)
	}
	return c.stdQuerier.exec(ctx, query, args)
}

func (c *stdConn) query(ctx context.Context, query string, args []any, each eachRow) error {
	err := c.stdQuerier.query(ctx, query, args, each)
	if c.native != nil {
		return pgxSent(c.native, err)
	}
	return err
}

// begin detaches the transaction from ctx: database/sql would roll back by
// itself when ctx ends, even in the middle of a COMMIT. The statements inside
// still take the caller's context.
func (c *stdConn) begin(ctx context.Context, how txMode, first ...statement) (err error) {
	detached, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	defer stop()
	c.cancel, c.marker = cancel, how.marker
	if c.handle, err = c.pooled.BeginTx(detached, &sql.TxOptions{Isolation: how.level, ReadOnly: how.readOnly}); err != nil {
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
		if _, err := row(bounded, stdQuerier{c.handle}, markedSQL, []any{c.marker}, &same); err != nil {
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
		return errAborted
	case err == nil:
		c.handle = nil // nothing to roll back
	}
	return err
}

// unchecked is the error of the statement before a COMMIT, which was not sent.
func unchecked(err error) error {
	switch {
	case errors.Is(err, sql.ErrTxDone):
		return errEnded
	case pgerr.State(err) == "25P02": // in_failed_sql_transaction
		return errAborted
	}
	return pgerr.NotSent(err)
}

// commitRollbackText is what pgx's stdlib and lib/pq call a COMMIT that the
// server answered with ROLLBACK; neither exports it through database/sql.
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
	if c.native == nil {
		return nil
	}
	return c.pooled.Raw(func(any) error { return look(c.native) })
}

func (c *stdConn) release() {
	if c.handle != nil {
		timer := time.AfterFunc(rollbackTimeout, c.cancel)
		defer timer.Stop()
		c.handle.Rollback() // a connection that cannot roll back is closed, and the server rolls back
	}
	c.cancel()
	c.pooled.Close()
}

// stdQuerier is a connection or a transaction.
type stdQuerier struct {
	on interface {
		ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
		QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	}
}

func (q stdQuerier) exec(ctx context.Context, query string, args []any) (int64, error) {
	res, err := q.on.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

func (q stdQuerier) query(ctx context.Context, query string, args []any, each eachRow) error {
	rows, err := q.on.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	return readRows(rows, each)
}
