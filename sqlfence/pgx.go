package sqlfence

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
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
	return newDB[pgx.Tx](pgxBackend{pool}, opts)
}

// WatchWarnings makes the connections of a configuration show this package, sqlrow
// and sqladmin a warning that changes the outcome of a COMMIT: that the server
// stopped waiting for its synchronous standby, because a person or a driver
// cancelled the wait or terminated the session. Then a write or a raise is [guard.ErrOutcomeUnknown], even
// with [TxOptions].Resolve, since only the primary is known to have it; to repeat the
// raise shows no more than that. Without it
// such a COMMIT looks like any other. Call it before the pool is opened, with
// [pgxpool.Config].ConnConfig or what pgx's stdlib.OpenDB is given; a handler in
// OnNotice that is there already still gets every notice. client_min_messages must
// not be above warning.
func WatchWarnings(config *pgx.ConnConfig) { pgerr.WatchWarnings(&config.Config) }

type pgxBackend struct{ conns *pgxpool.Pool }

func (b pgxBackend) conn(ctx context.Context) (conn[pgx.Tx], error) {
	c, err := sqlkit.AcquirePgx(ctx, b.conns)
	if err != nil {
		return nil, err
	}
	return &pgxConn{Pgx: sqlkit.Pgx{On: c.Conn(), Conn: c.Conn()}, pooled: c}, nil
}

func (b pgxBackend) single() bool { return b.conns.Stat().MaxConns() == 1 }

func (b pgxBackend) exhausted() bool {
	s := b.conns.Stat()
	return s.AcquiredConns() >= s.MaxConns()
}

func (b pgxBackend) pool() any { return b.conns }

func (b pgxBackend) in(tx pgx.Tx) sqlkit.Querier { return sqlkit.Pgx{On: tx, Conn: tx.Conn()} }

// same compares the connections, because a pgx savepoint has its own handle.
func (b pgxBackend) same(x, y pgx.Tx) bool { return x.Conn() == y.Conn() }

// pgxConn is a connection of the pool. With a transaction of the pool, pgx would
// return the connection when the callback ends the transaction, and its next user
// would be seen here.
type pgxConn struct {
	sqlkit.Pgx
	pooled *pgxpool.Conn
	handle *pgxHandle
	marker string
}

func (c *pgxConn) tx() pgx.Tx { return c.handle }

// pgxBegin returns a batch that begins a transaction with some statements.
func pgxBegin(how txMode, first ...statement) *pgx.Batch {
	b := &pgx.Batch{}
	opts := pgx.TxOptions{IsoLevel: pgx.TxIsoLevel(strings.ToLower(how.level.String())), AccessMode: pgx.ReadWrite}
	if how.readOnly {
		opts.AccessMode = pgx.ReadOnly
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

// begin sends BEGIN and the statements in one round trip. A refused batch leaves
// the transaction open in the server.
func (c *pgxConn) begin(ctx context.Context, how txMode, first ...statement) error {
	br := c.Conn.SendBatch(ctx, pgxBegin(how, first...))
	c.handle, c.marker = &pgxHandle{Tx: br.Tx()}, how.marker
	return br.Close()
}

// commit sends the check for the marker and COMMIT in one round trip. Both come
// before one Sync, or are one message of the simple protocol, so that the server
// skips the COMMIT if the marker is missing.
func (c *pgxConn) commit(ctx context.Context, bound *commitBound) error {
	if err := committable(c.Conn); err != nil {
		return err
	}
	if c.marker == "" {
		err := c.handle.Commit(bound.context(ctx))
		if errors.Is(err, pgx.ErrTxCommitRollback) {
			return sqlkit.ErrAborted
		}
		return sqlkit.Replicated(c.Conn, err)
	}
	b, aborted := &pgx.Batch{}, false
	b.Queue(checkMarkerSQL, c.marker)
	b.Queue("COMMIT").Exec(func(tag pgconn.CommandTag) error { aborted = tag.String() == "ROLLBACK"; return nil })
	err := c.Conn.SendBatch(bound.context(ctx), b).Close()
	switch {
	case err == nil && aborted:
		return sqlkit.ErrAborted
	case noMarker(err):
		return errEnded
	case unprepared(err):
		return pgerr.NotSent(err)
	case err != nil && !c.Conn.IsClosed() && c.Conn.PgConn().TxStatus() != 'I': // the COMMIT was skipped
		return pgerr.NotSent(err)
	}
	return sqlkit.Replicated(c.Conn, err)
}

// checkMarkerSQL fails if the marker is missing. The error is recognised by the
// name of a setting that nobody has, whatever the server's language.
const (
	checkMarkerSQL = "SELECT pg_catalog.current_setting(CASE WHEN " + isMarkedSQL +
		" THEN 'fencepost.transaction' ELSE '" + noMarkerText + "' END)"
	noMarkerText = "fencepost: the transaction was ended"
)

func noMarker(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && strings.Contains(pg.Message, noMarkerText)
}

// committable checks a connection before a COMMIT is sent. On a connection
// without a transaction a COMMIT would succeed.
func committable(c *pgx.Conn) error {
	switch {
	case c.IsClosed():
		return pgerr.NotSent(pgconn.ErrConnClosed)
	case c.PgConn().TxStatus() == 'I':
		return errEnded
	case c.PgConn().TxStatus() == 'E':
		return sqlkit.ErrAborted
	}
	_ = pgerr.Doubt(c.PgConn()) // a warning that was not the COMMIT's
	return nil
}

func (c *pgxConn) gone() bool { return c.Conn.IsClosed() }

func (c *pgxConn) release() {
	if c.handle != nil {
		if sqlkit.Busy(c.Conn) {
			ctx, cancel := context.WithTimeout(context.Background(), rollbackTimeout)
			defer cancel()
			c.handle.Rollback(ctx) // a connection that cannot roll back is closed, and the server rolls back
		}
		c.handle.end()
	}
	c.pooled.Release()
}

// unprepared reports that a statement of a batch could not be prepared: nothing of
// the batch was sent.
func unprepared(err error) bool {
	return err != nil && strings.HasPrefix(err.Error(), "error preprocessing batch (prepare)")
}

// pgxHandle is the handle of a transaction, or of a savepoint in it. COMMIT
// bypasses pgx's own handle, which would not know that the transaction is over
// and would keep writing, on a connection that somebody else uses by then.
type pgxHandle struct {
	pgx.Tx
	savepoints []*pgxHandle
	objects    bool // LargeObjects was called
}

// open returns what to send a statement to: nothing once the callback has ended the
// transaction in SQL, since the statement would commit by itself, without a fence.
func (t *pgxHandle) open() pgx.Tx {
	if c := t.Tx.Conn(); c != nil && !c.IsClosed() && c.PgConn().TxStatus() == 'I' {
		return closedTx()
	}
	return t.Tx
}

// closedTx fails every call with pgx.ErrTxClosed.
func closedTx() pgx.Tx { return pgx.FailedBatchResults(pgxBegin(readCommitted), pgx.ErrTxClosed).Tx() }

func (t *pgxHandle) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return t.open().Exec(ctx, sql, args...)
}

func (t *pgxHandle) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return t.open().Query(ctx, sql, args...)
}

func (t *pgxHandle) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return t.open().QueryRow(ctx, sql, args...)
}

func (t *pgxHandle) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	return t.open().SendBatch(ctx, b)
}

func (t *pgxHandle) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error) {
	return t.open().CopyFrom(ctx, table, columns, rows)
}

func (t *pgxHandle) Begin(ctx context.Context) (pgx.Tx, error) {
	tx, err := t.open().Begin(ctx)
	if err != nil {
		return nil, err
	}
	savepoint := &pgxHandle{Tx: tx}
	t.savepoints = append(t.savepoints, savepoint)
	return savepoint, nil
}

// LargeObjects returns what writes through pgx's own handle.
func (t *pgxHandle) LargeObjects() pgx.LargeObjects {
	t.objects = true
	return t.Tx.LargeObjects()
}

// end makes every further use an error. pgx's own handle is closed by a COMMIT
// that is not sent but that a tracer sees, so this is done only if something
// still has that handle.
func (t *pgxHandle) end() {
	if t.objects {
		over, cancel := context.WithCancel(context.Background())
		cancel()
		t.Tx.Commit(over)
	}
	t.Tx = closedTx()
	for _, savepoint := range t.savepoints {
		savepoint.end()
	}
}
