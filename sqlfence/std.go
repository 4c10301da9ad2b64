package sqlfence

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/migrate"
)

// Std returns a [DB] on database/sql with a PostgreSQL driver. It sends
// nothing. opts may be nil; the error is an [*guard.InvalidError] that names
// the option.
//
// The reasons of a refusal come from the server's SQLSTATE, which every driver
// offers that has a SQLState method on its errors (pgx's stdlib, lib/pq); the
// mark in a [*guard.RejectedError] needs pgx's stdlib.
func Std(db *sql.DB, opts *Options) (*DB[*sql.Tx], error) {
	if db == nil {
		return nil, guard.Invalid("db", "nil", "must not be nil")
	}
	return newDB[*sql.Tx](stdDriver{db}, opts)
}

type stdDriver struct{ db *sql.DB }

// maxBadConns is how many dead connections are put aside before giving up;
// database/sql itself does the same for statements outside a Conn.
const maxBadConns = 3

// conn runs f on a connection that it takes itself, so that an error of the
// pool is known to have sent nothing. Drivers return ErrBadConn only if
// nothing was sent, so another connection may be tried.
func (d stdDriver) conn(ctx context.Context, f func(*sql.Conn) error) error {
	for try := 1; ; try++ {
		c, err := d.db.Conn(ctx)
		if err != nil {
			return notSent{err}
		}
		err = f(c)
		c.Close()
		if !errors.Is(err, driver.ErrBadConn) {
			return err
		}
		if try == maxBadConns {
			return notSent{err}
		}
	}
}

func (d stdDriver) exec(ctx context.Context, query string, args []any) (n int64, err error) {
	err = d.conn(ctx, func(c *sql.Conn) (err error) {
		n, err = stdExec(ctx, c, query, args)
		return err
	})
	return n, err
}

func (d stdDriver) row(ctx context.Context, query string, args []any, dest ...any) (bool, error) {
	return stdRow(ctx, d.db, query, args, dest)
}

func (d stdDriver) migrate(ctx context.Context, c migrate.Component) error {
	return d.conn(ctx, func(conn *sql.Conn) error { return c.Up(ctx, migrate.Std(conn)) })
}

// begin detaches the transaction from ctx: database/sql would roll back by
// itself when ctx ends, in the middle of a COMMIT too. The statements inside
// still take the caller's context.
func (d stdDriver) begin(ctx context.Context, query string, args []any) (transaction[*sql.Tx], error) {
	detached, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	tx, err := d.db.BeginTx(detached, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		stop()
		cancel()
		return nil, err
	}
	t := stdTransaction{tx: tx, cancel: cancel}
	if _, err := tx.ExecContext(ctx, query, args...); err != nil {
		t.rollback()
		return nil, err
	}
	if !stop() {
		t.rollback()
		return nil, ctx.Err()
	}
	return t, nil
}

func (d stdDriver) in(tx *sql.Tx) querier { return stdQuerier{tx} }

type stdTransaction struct {
	tx     *sql.Tx
	cancel context.CancelFunc
}

func (t stdTransaction) handle() *sql.Tx { return t.tx }

func (t stdTransaction) commit(_ context.Context, timeout time.Duration) error {
	defer t.cancel()
	timer := time.AfterFunc(timeout, t.cancel)
	defer timer.Stop()
	err := t.tx.Commit()
	switch {
	case errors.Is(err, sql.ErrTxDone):
		return errEnded
	case err != nil && err.Error() == commitRollbackText:
		return errAborted
	}
	return err
}

// commitRollbackText is what pgx's stdlib and lib/pq call a COMMIT that the
// server answered with ROLLBACK; neither exports it through database/sql.
const commitRollbackText = "commit unexpectedly resulted in rollback"

func (t stdTransaction) rollback() {
	timer := time.AfterFunc(rollbackTimeout, t.cancel)
	defer timer.Stop()
	t.tx.Rollback() // a connection that cannot roll back is closed, and the server does it
	t.cancel()
}

type stdExecer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

type stdRower interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

func stdExec(ctx context.Context, c stdExecer, query string, args []any) (int64, error) {
	res, err := c.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

func stdRow(ctx context.Context, c stdRower, query string, args []any, dest []any) (bool, error) {
	err := c.QueryRowContext(ctx, query, args...).Scan(dest...)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

type stdQuerier struct{ tx *sql.Tx }

func (q stdQuerier) exec(ctx context.Context, query string, args []any) (int64, error) {
	return stdExec(ctx, q.tx, query, args)
}

func (q stdQuerier) row(ctx context.Context, query string, args []any, dest ...any) (bool, error) {
	return stdRow(ctx, q.tx, query, args, dest)
}
