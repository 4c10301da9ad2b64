package sqlfence

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/migrate"
)

// Pgx returns a [DB] on a pgx pool. It sends nothing. opts may be nil; the
// error is an [*guard.InvalidError] that names the option.
//
// Every exec mode of pgx works; behind PgBouncer's transaction pooling use one
// without prepared statements, as pgx's documentation says.
func Pgx(pool *pgxpool.Pool, opts *Options) (*DB[pgx.Tx], error) {
	if pool == nil {
		return nil, guard.Invalid("pool", "nil", "must not be nil")
	}
	return newDB[pgx.Tx](pgxDriver{pool}, opts)
}

type pgxDriver struct{ pool *pgxpool.Pool }

// exec takes the connection itself, so that an error of the pool is known to
// have sent nothing.
func (d pgxDriver) exec(ctx context.Context, sql string, args []any) (int64, error) {
	c, err := d.pool.Acquire(ctx)
	if err != nil {
		return 0, notSent{err}
	}
	defer c.Release()
	n, err := pgxExec(ctx, c, sql, args)
	return n, pgxSent(c.Conn(), err)
}

func (d pgxDriver) row(ctx context.Context, sql string, args []any, dest ...any) (bool, error) {
	return pgxRow(ctx, d.pool, sql, args, dest)
}

func (d pgxDriver) migrate(ctx context.Context, c migrate.Component) error {
	conn, err := d.pool.Acquire(ctx)
	if err != nil {
		return notSent{err}
	}
	defer conn.Release()
	return c.Up(ctx, migrate.Pgx(conn.Conn()))
}

// begin sends BEGIN and sql in one round trip. A refused batch leaves the
// transaction open in the server, so it is rolled back here.
func (d pgxDriver) begin(ctx context.Context, sql string, args []any) (transaction[pgx.Tx], error) {
	c, err := d.pool.Acquire(ctx)
	if err != nil {
		return nil, notSent{err}
	}
	b := &pgx.Batch{}
	b.BeginTx(pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite})
	b.Queue(sql, args...)
	br := c.SendBatch(ctx, b)
	err = br.Close()
	tx := &pgxTransaction{conn: c, tx: br.Tx()}
	if err != nil {
		tx.rollback()
		return nil, err
	}
	return tx, nil
}

func (d pgxDriver) in(tx pgx.Tx) querier { return pgxQuerier{tx} }

// pgxTransaction holds its connection itself: a transaction of the pool gives
// it back when the callback ends it, and the next to use it would be seen here.
type pgxTransaction struct {
	conn *pgxpool.Conn // nil once it was given back
	tx   pgx.Tx
}

func (t *pgxTransaction) handle() pgx.Tx { return t.tx }

func (t *pgxTransaction) commit(ctx context.Context, timeout time.Duration) error {
	if err := committable(t.conn.Conn()); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	err := t.tx.Commit(ctx)
	switch {
	case errors.Is(err, pgx.ErrTxCommitRollback):
		return errAborted
	case errors.Is(err, pgx.ErrTxClosed):
		return errEnded
	case err == nil:
		t.release()
	}
	return err
}

func (t *pgxTransaction) rollback() {
	if t.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), rollbackTimeout)
	defer cancel()
	t.tx.Rollback(ctx) // a connection that cannot roll back is closed, and the server does it
	t.release()
}

func (t *pgxTransaction) release() {
	t.conn.Release()
	t.conn = nil
}

// committable looks at a connection before a COMMIT is sent. On one without a
// transaction a COMMIT would be a success.
func committable(c *pgx.Conn) error {
	switch {
	case c.IsClosed():
		return notSent{pgconn.ErrConnClosed}
	case c.PgConn().TxStatus() == 'I':
		return errEnded
	}
	return nil
}

type pgxRower interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

type pgxExecer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

func pgxExec(ctx context.Context, c pgxExecer, sql string, args []any) (int64, error) {
	tag, err := c.Exec(ctx, sql, args...)
	return tag.RowsAffected(), err
}

// pgxSent tells an argument that could not be encoded from a lost answer: pgx
// closes a connection on which anything went wrong after it was written to.
func pgxSent(c *pgx.Conn, err error) error {
	switch {
	case err == nil || sqlState(err) != "" || c.IsClosed() || pgconn.SafeToRetry(err):
		return err
	case errors.Is(err, pgx.ErrTxClosed):
		return notSent{err}
	}
	return unsendable{err}
}

func pgxRow(ctx context.Context, c pgxRower, sql string, args []any, dest []any) (bool, error) {
	err := c.QueryRow(ctx, sql, args...).Scan(dest...)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

type pgxQuerier struct{ tx pgx.Tx }

func (q pgxQuerier) exec(ctx context.Context, sql string, args []any) (int64, error) {
	n, err := pgxExec(ctx, q.tx, sql, args)
	return n, pgxSent(q.tx.Conn(), err)
}

func (q pgxQuerier) row(ctx context.Context, sql string, args []any, dest ...any) (bool, error) {
	return pgxRow(ctx, q.tx, sql, args, dest)
}
