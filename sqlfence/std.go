package sqlfence

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

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

// conn runs f, which may be repeated, on a connection.
func (d stdDriver) conn(ctx context.Context, f func(*sql.Conn) error) error {
	for try := 1; ; try++ {
		c, err := d.db.Conn(ctx)
		if err != nil {
			return notSent{err}
		}
		err = f(c)
		c.Close()
		if !errors.Is(err, driver.ErrBadConn) || try == maxBadConns {
			return err
		}
	}
}

// exec takes the connection itself, so that an error of the pool is known to
// have sent nothing. It is never repeated: ErrBadConn should mean that nothing
// was sent, but pgx's stdlib makes it of errors that do not (see connecting).
// pgx's own connection under database/sql tells them apart.
func (d stdDriver) exec(ctx context.Context, query string, args []any) (n int64, err error) {
	c, err := d.db.Conn(ctx)
	if err != nil {
		return 0, notSent{err}
	}
	defer c.Close()
	native := false
	raw := c.Raw(func(driverConn any) error {
		d, ok := driverConn.(stdNative)
		if native = ok; ok {
			n, err = pgxExec(ctx, d.Conn(), query, args)
			err = pgxSent(d.Conn(), err)
		}
		return nil
	})
	if raw != nil {
		return 0, notSent{raw}
	}
	if native {
		return n, err
	}
	return stdExec(ctx, c, query, args)
}

// stdNative is a connection of pgx's stdlib.
type stdNative interface{ Conn() *pgx.Conn }

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
	conn, tx, err := d.beginOn(ctx, detached)
	if err != nil {
		stop()
		cancel()
		return nil, err
	}
	t := &stdTransaction{conn: conn, tx: tx, cancel: cancel}
	if _, err := tx.ExecContext(ctx, query, args...); err != nil {
		t.rollback()
		return nil, err
	}
	if !stop() {
		t.rollback()
		return nil, notSent{context.Cause(ctx)}
	}
	return t, nil
}

// beginOn begins a transaction on a connection of its own that lives as long
// as detached, trying another connection like [stdDriver.conn].
func (d stdDriver) beginOn(ctx, detached context.Context) (*sql.Conn, *sql.Tx, error) {
	for try := 1; ; try++ {
		conn, err := d.db.Conn(ctx)
		if err != nil {
			return nil, nil, notSent{err}
		}
		tx, err := conn.BeginTx(detached, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
		if err == nil {
			return conn, tx, nil
		}
		conn.Close()
		if !errors.Is(err, driver.ErrBadConn) || try == maxBadConns {
			return nil, nil, err
		}
	}
}

func (d stdDriver) in(tx *sql.Tx) querier { return stdQuerier{tx} }

// stdTransaction holds its connection itself, to look at it before a COMMIT.
type stdTransaction struct {
	conn   *sql.Conn
	tx     *sql.Tx
	cancel context.CancelFunc
}

func (t *stdTransaction) handle() *sql.Tx { return t.tx }

func (t *stdTransaction) commit(_ context.Context, timeout time.Duration) error {
	// A callback's own COMMIT or ROLLBACK in SQL goes past database/sql.
	if c := stdPgx(t.conn); c != nil {
		if err := committable(c); err != nil {
			return err
		}
	}
	timer := time.AfterFunc(timeout, t.cancel)
	defer timer.Stop()
	err := t.tx.Commit()
	switch {
	case errors.Is(err, sql.ErrTxDone):
		return errEnded
	case err != nil && err.Error() == commitRollbackText:
		return errAborted
	case err == nil:
		t.release()
	}
	return err
}

// commitRollbackText is what pgx's stdlib and lib/pq call a COMMIT that the
// server answered with ROLLBACK; neither exports it through database/sql.
const commitRollbackText = "commit unexpectedly resulted in rollback"

func (t *stdTransaction) rollback() {
	timer := time.AfterFunc(rollbackTimeout, t.cancel)
	defer timer.Stop()
	t.tx.Rollback() // a connection that cannot roll back is closed, and the server does it
	t.release()
}

// release may be called again.
func (t *stdTransaction) release() {
	t.cancel()
	t.conn.Close()
}

// stdPgx returns the connection under c if the driver is pgx's stdlib, else nil.
func stdPgx(c *sql.Conn) (conn *pgx.Conn) {
	c.Raw(func(driverConn any) error {
		if d, ok := driverConn.(stdNative); ok {
			conn = d.Conn()
		}
		return nil
	})
	return conn
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
