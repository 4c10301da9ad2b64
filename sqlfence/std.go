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
	"github.com/fencepost-go/fencepost/internal/pgerr"
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
	return newDB[*sql.Tx](stdDriver{db: db}, opts)
}

// StdConn is [Std] on one connection, on which no transaction may be open
// whenever the DB is used; with pgx's stdlib that is refused with ErrInvalid.
// The DB is not safe for concurrent use.
func StdConn(conn *sql.Conn, opts *Options) (*DB[*sql.Tx], error) {
	if conn == nil {
		return nil, guard.Invalid("conn", "nil", "must not be nil")
	}
	return newDB[*sql.Tx](stdDriver{one: conn}, opts)
}

// stdDriver is a pool or one connection.
type stdDriver struct {
	db  *sql.DB
	one *sql.Conn
}

// idle returns a connection without a transaction, and what gives it back. Its
// errors are known to have sent nothing.
func (d stdDriver) idle(ctx context.Context) (*sql.Conn, func(), error) {
	if d.one == nil {
		c, err := d.db.Conn(ctx)
		if err != nil {
			return nil, nil, pgerr.NotSent(err)
		}
		return c, func() { c.Close() }, nil
	}
	if err := ctx.Err(); err != nil {
		return nil, nil, pgerr.NotSent(err)
	}
	if c := stdPgx(d.one); c != nil && !c.IsClosed() && c.PgConn().TxStatus() != 'I' {
		return nil, nil, errBusy
	}
	return d.one, nothing, nil
}

// maxBadConns is how many dead connections are put aside before giving up;
// database/sql itself does the same for statements outside a Conn.
const maxBadConns = 3

// conn runs f, which may be repeated, on a connection.
func (d stdDriver) conn(ctx context.Context, f func(*sql.Conn) error) error {
	for try := 1; ; try++ {
		c, release, err := d.idle(ctx)
		if err != nil {
			return err
		}
		err = f(c)
		release()
		if !errors.Is(err, driver.ErrBadConn) || try == maxBadConns || d.one != nil {
			return err
		}
	}
}

// exec takes the connection itself, so that an error of the pool is known to
// have sent nothing. It is never repeated: ErrBadConn should mean that nothing
// was sent, but pgx's stdlib makes it of errors that do not (see connecting).
// pgx's own connection under database/sql tells them apart.
func (d stdDriver) exec(ctx context.Context, query string, args []any) (n int64, err error) {
	c, release, err := d.idle(ctx)
	if err != nil {
		return 0, err
	}
	defer release()
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
		return 0, pgerr.NotSent(raw)
	}
	if native {
		return n, err
	}
	return stdExec(ctx, c, query, args)
}

// stdNative is a connection of pgx's stdlib.
type stdNative interface{ Conn() *pgx.Conn }

func (d stdDriver) row(ctx context.Context, query string, args []any, dest ...any) (bool, error) {
	if d.one == nil {
		return stdRow(ctx, d.db, query, args, dest)
	}
	c, _, err := d.idle(ctx)
	if err != nil {
		return false, err
	}
	return stdRow(ctx, c, query, args, dest)
}

func (d stdDriver) migrate(ctx context.Context, c migrate.Component) error {
	return d.conn(ctx, func(conn *sql.Conn) error { return c.Up(ctx, migrate.Std(conn)) })
}

// begin detaches the transaction from ctx: database/sql would roll back by
// itself when ctx ends, in the middle of a COMMIT too. The statements inside
// still take the caller's context.
func (d stdDriver) begin(ctx context.Context, level Isolation, marker string, first ...statement) (transaction[*sql.Tx], error) {
	detached, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	t, err := d.beginOn(ctx, detached, level)
	if err != nil {
		stop()
		cancel()
		return nil, err
	}
	t.cancel, t.marker = cancel, marker
	for _, s := range first {
		if s.dest == nil {
			_, err = t.tx.ExecContext(ctx, s.sql, s.args...)
		} else {
			err = t.tx.QueryRowContext(ctx, s.sql, s.args...).Scan(s.dest...)
		}
		if err != nil {
			t.rollback()
			return nil, err
		}
	}
	if !stop() {
		t.rollback()
		return nil, pgerr.NotSent(context.Cause(ctx))
	}
	return t, nil
}

var stdLevels = map[Isolation]sql.IsolationLevel{
	ReadCommitted: sql.LevelReadCommitted, RepeatableRead: sql.LevelRepeatableRead, Serializable: sql.LevelSerializable, inspecting: sql.LevelReadCommitted,
}

// beginOn begins a transaction on a connection of its own that lives as long
// as detached, trying another connection like [stdDriver.conn].
func (d stdDriver) beginOn(ctx, detached context.Context, level Isolation) (*stdTransaction, error) {
	for try := 1; ; try++ {
		conn, release, err := d.idle(ctx)
		if err != nil {
			return nil, err
		}
		tx, err := conn.BeginTx(detached, &sql.TxOptions{Isolation: stdLevels[level], ReadOnly: level == inspecting})
		if err == nil {
			return &stdTransaction{conn: conn, giveBack: release, tx: tx}, nil
		}
		release()
		if !errors.Is(err, driver.ErrBadConn) || try == maxBadConns || d.one != nil {
			return nil, err
		}
	}
}

// batch takes a round trip for each statement: database/sql has no pipeline.
func (d stdDriver) batch(ctx context.Context, first statement, writes []Statement, commits *commitBound) ([]int64, bool, error) {
	tx, err := d.begin(ctx, ReadCommitted, "", first)
	if err != nil {
		return nil, false, err
	}
	defer tx.rollback() // does nothing after a COMMIT
	rows := make([]int64, len(writes))
	for i, w := range writes {
		if rows[i], err = stdExec(ctx, tx.handle(), w.SQL, w.Args); err != nil {
			return nil, false, err
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, false, context.Cause(ctx)
	}
	return rows, true, tx.commit(ctx, commits)
}

func (d stdDriver) in(tx *sql.Tx) querier { return stdQuerier{tx} }

func (d stdDriver) same(a, b *sql.Tx) bool { return a == b }

// stdTransaction holds its connection itself, to look at it before a COMMIT.
type stdTransaction struct {
	conn     *sql.Conn
	giveBack func()
	tx       *sql.Tx
	cancel   context.CancelFunc
	marker   string
}

func (t *stdTransaction) handle() *sql.Tx { return t.tx }

func (t *stdTransaction) commit(ctx context.Context, bound *commitBound) error {
	// A callback's own COMMIT or ROLLBACK in SQL goes past database/sql.
	if c := stdPgx(t.conn); c != nil {
		if err := committable(c); err != nil {
			return err
		}
	}
	bounded := bound.context(ctx)
	stop := context.AfterFunc(bounded, t.cancel)
	defer stop()
	// The driver may be wrapped by another one, and knows nothing of COMMIT AND
	// CHAIN: only the server does. It is a round trip of its own here, because
	// database/sql has no pipeline; on pgx it is none.
	if t.marker != "" {
		var same bool
		if _, err := stdRow(bounded, t.tx, markedSQL, []any{t.marker}, []any{&same}); err != nil {
			return unchecked(err)
		}
		if !same {
			return errEnded
		}
	}
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

func (t *stdTransaction) rollback() {
	timer := time.AfterFunc(rollbackTimeout, t.cancel)
	defer timer.Stop()
	t.tx.Rollback() // a connection that cannot roll back is closed, and the server does it
	t.release()
}

// release may be called again.
func (t *stdTransaction) release() {
	t.cancel()
	t.giveBack()
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

// query is never repeated, as exec.
func (d stdDriver) query(ctx context.Context, query string, args []any, each eachRow) error {
	c, release, err := d.idle(ctx)
	if err != nil {
		return err
	}
	defer release()
	if err = stdQuery(ctx, c, query, args, each); err == nil {
		return nil
	}
	return pgxQuerySent(stdPgx(c), err)
}

func (q stdQuerier) query(ctx context.Context, query string, args []any, each eachRow) error {
	return stdQuery(ctx, q.tx, query, args, each)
}

type stdRowser interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

func stdQuery(ctx context.Context, q stdRowser, query string, args []any, each eachRow) error {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	return readRows(rows, each)
}
