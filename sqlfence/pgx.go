package sqlfence

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/migrate"
	"github.com/fencepost-go/fencepost/internal/pgerr"
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
	return newDB[pgx.Tx](pgxDriver{pool: pool}, opts)
}

// PgxConn is [Pgx] on one connection, which must be idle whenever the DB is
// used: a transaction that is open on it is refused with ErrInvalid. The DB is
// as little safe for concurrent use as the connection.
func PgxConn(conn *pgx.Conn, opts *Options) (*DB[pgx.Tx], error) {
	if conn == nil {
		return nil, guard.Invalid("conn", "nil", "must not be nil")
	}
	return newDB[pgx.Tx](pgxDriver{one: conn}, opts)
}

// pgxDriver is a pool or one connection.
type pgxDriver struct {
	pool *pgxpool.Pool
	one  *pgx.Conn
}

func nothing() {}

// idle returns a connection without a transaction, and what gives it back. Its
// errors are known to have sent nothing. A BEGIN inside a transaction would be
// a mere warning of the server's.
func (d pgxDriver) idle(ctx context.Context) (*pgx.Conn, func(), error) {
	conn, release := d.one, nothing
	if d.pool != nil {
		c, err := d.pool.Acquire(ctx)
		if err != nil {
			return nil, nil, pgerr.NotSent(err)
		}
		conn, release = c.Conn(), c.Release
	}
	if !conn.IsClosed() && conn.PgConn().TxStatus() != 'I' {
		release()
		return nil, nil, errBusy
	}
	return conn, release, nil
}

func (d pgxDriver) exec(ctx context.Context, sql string, args []any) (int64, error) {
	c, release, err := d.idle(ctx)
	if err != nil {
		return 0, err
	}
	defer release()
	n, err := pgxExec(ctx, c, sql, args)
	return n, pgxSent(c, err)
}

func (d pgxDriver) row(ctx context.Context, sql string, args []any, dest ...any) (bool, error) {
	c, release, err := d.idle(ctx)
	if err != nil {
		return false, err
	}
	defer release()
	return pgxRow(ctx, c, sql, args, dest)
}

func (d pgxDriver) migrate(ctx context.Context, c migrate.Component) error {
	conn, release, err := d.idle(ctx)
	if err != nil {
		return err
	}
	defer release()
	return c.Up(ctx, migrate.Pgx(conn))
}

var pgxLevels = map[Isolation]pgx.TxIsoLevel{
	ReadCommitted: pgx.ReadCommitted, RepeatableRead: pgx.RepeatableRead, Serializable: pgx.Serializable, inspecting: pgx.ReadCommitted,
}

// pgxBegin returns a batch that begins a transaction with some statements. Its
// COMMIT looks for the marker in the same round trip: the two are one message
// of the simple protocol, of which the server runs nothing after an error.
func pgxBegin(level Isolation, marker string, first ...statement) *pgx.Batch {
	b := &pgx.Batch{}
	opts := pgx.TxOptions{IsoLevel: pgxLevels[level], AccessMode: pgx.ReadWrite}
	if level == inspecting {
		opts.AccessMode = pgx.ReadOnly
	}
	if marker != "" {
		opts.CommitQuery = checkMarkerSQL(marker) + "; COMMIT"
	}
	b.BeginTx(opts)
	for _, s := range first {
		q := b.Queue(s.sql, s.args...)
		if s.dest != nil {
			q.QueryRow(func(row pgx.Row) error { return row.Scan(s.dest...) })
		}
	}
	return b
}

// checkMarkerSQL fails where the marker is not.
func checkMarkerSQL(marker string) string {
	return "SELECT pg_catalog.current_setting(CASE WHEN pg_catalog.current_setting('fencepost.transaction', true) OPERATOR(pg_catalog.=) '" +
		marker + "' THEN 'fencepost.transaction' ELSE '" + noMarkerText + "' END)"
}

// noMarkerText is shown in the error of a setting that nobody has, whatever
// language the server speaks.
const noMarkerText = "fencepost: the transaction was ended"

// begin sends BEGIN and the statements in one round trip. A refused batch
// leaves the transaction open in the server, so it is rolled back here.
func (d pgxDriver) begin(ctx context.Context, level Isolation, marker string, first ...statement) (transaction[pgx.Tx], error) {
	c, release, err := d.idle(ctx)
	if err != nil {
		return nil, err
	}
	br := c.SendBatch(ctx, pgxBegin(level, marker, first...))
	err = br.Close()
	tx := &pgxTransaction{conn: c, giveBack: release, tx: br.Tx()}
	if err != nil {
		tx.rollback()
		return nil, err
	}
	return tx, nil
}

// batchBuildText begins the error of pgx 5.12.0 for an argument that it cannot
// encode; its type is not exported, and the connection is closed. Without it
// the outcome would be called unknown.
const batchBuildText = "error preprocessing batch (build)"

// batch has COMMIT in the same round trip. The server skips it after an error,
// since both come before one Sync, and the transaction is left to be rolled
// back here; so an error with an open transaction committed nothing.
func (d pgxDriver) batch(ctx context.Context, first statement, writes []Statement, _ *commitBound) ([]int64, bool, error) {
	c, release, err := d.idle(ctx)
	if err != nil {
		return nil, false, err
	}
	b := pgxBegin(ReadCommitted, "", first)
	rows := make([]int64, len(writes))
	for i, w := range writes {
		b.Queue(w.SQL, w.Args...).Exec(func(tag pgconn.CommandTag) error { rows[i] = tag.RowsAffected(); return nil })
	}
	aborted := false
	b.Queue("COMMIT").Exec(func(tag pgconn.CommandTag) error { aborted = tag.String() == "ROLLBACK"; return nil })
	br := c.SendBatch(ctx, b)
	err = br.Close()
	tx := &pgxTransaction{conn: c, giveBack: release, tx: br.Tx()}
	defer tx.rollback()
	switch {
	case err == nil && aborted:
		return nil, false, errAborted
	case err != nil && strings.HasPrefix(err.Error(), batchBuildText):
		return nil, false, unsendable{err} // the COMMIT would have been built after it
	case err != nil && !c.IsClosed() && c.PgConn().TxStatus() != 'I':
		return nil, false, pgxSent(c, err)
	case err != nil:
		return nil, true, pgxSent(c, err)
	}
	return rows, true, nil
}

func (d pgxDriver) in(tx pgx.Tx) querier { return pgxQuerier{tx} }

// same looks at the connections, because a savepoint of pgx's has a handle of
// its own.
func (d pgxDriver) same(a, b pgx.Tx) bool { return a.Conn() == b.Conn() }

// pgxTransaction holds its connection itself: a transaction of the pool gives
// it back when the callback ends it, and the next to use it would be seen here.
type pgxTransaction struct {
	conn     *pgx.Conn
	giveBack func() // nil once it was called
	tx       pgx.Tx
}

func (t *pgxTransaction) handle() pgx.Tx { return t.tx }

func (t *pgxTransaction) commit(ctx context.Context, bound *commitBound) error {
	if err := committable(t.conn); err != nil {
		return err
	}
	err := t.tx.Commit(bound.context(ctx))
	var pg *pgconn.PgError
	switch {
	case errors.Is(err, pgx.ErrTxCommitRollback):
		return errAborted
	case errors.As(err, &pg) && strings.Contains(pg.Message, noMarkerText):
		return errEnded
	case errors.Is(err, pgx.ErrTxClosed):
		return errEnded
	case err == nil:
		t.release()
	}
	return err
}

func (t *pgxTransaction) rollback() {
	if t.giveBack == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), rollbackTimeout)
	defer cancel()
	t.tx.Rollback(ctx) // a connection that cannot roll back is closed, and the server does it
	t.release()
}

func (t *pgxTransaction) release() {
	t.giveBack()
	t.giveBack = nil
}

// committable looks at a connection before a COMMIT is sent. On one without a
// transaction a COMMIT would be a success.
func committable(c *pgx.Conn) error {
	switch {
	case c.IsClosed():
		return pgerr.NotSent(pgconn.ErrConnClosed)
	case c.PgConn().TxStatus() == 'I':
		return errEnded
	case c.PgConn().TxStatus() == 'E':
		return errAborted
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
	case err == nil || pgerr.State(err) != "" || c.IsClosed() || pgconn.SafeToRetry(err):
		return err
	case errors.Is(err, pgx.ErrTxClosed):
		return pgerr.NotSent(err)
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

func (d pgxDriver) query(ctx context.Context, sql string, args []any, each eachRow) error {
	c, release, err := d.idle(ctx)
	if err != nil {
		return err
	}
	defer release()
	return pgxQuerySent(c, pgxQuery(ctx, c, sql, args, each))
}

func (q pgxQuerier) query(ctx context.Context, sql string, args []any, each eachRow) error {
	return pgxQuerySent(q.tx.Conn(), pgxQuery(ctx, q.tx, sql, args, each))
}

// pgxQuerySent is pgxSent for a query.
func pgxQuerySent(c *pgx.Conn, err error) error {
	if c == nil || errors.As(err, new(unreadable)) {
		return err
	}
	return pgxSent(c, err)
}

type pgxRowser interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

func pgxQuery(ctx context.Context, q pgxRowser, sql string, args []any, each eachRow) error {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	return readRows(rows, each)
}
