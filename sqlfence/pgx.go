package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync/atomic"
	"time"

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

// WatchWarnings makes the connections of a configuration show this package, sqlrow and
// sqladmin that the server stopped waiting for its synchronous standby, because a person
// or a driver cancelled the wait or terminated the session.
//
// Then a write or a raise is [guard.ErrOutcomeUnknown], since only the primary is known to have
// it; to repeat the raise shows no more than that. Without it such a COMMIT looks like any
// other.
//
// Call it before the pool is opened, with [pgxpool.Config].ConnConfig or what pgx's
// stdlib.OpenDB is given: pgx gives warnings only to the handler that a connection was opened
// with, so that [Pgx] cannot do it. A handler in OnNotice that is there already still gets
// every notice. client_min_messages must not be above warning.
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
func (b pgxBackend) same(x, y pgx.Tx) bool {
	if _, is := y.(*pgxHandle); is {
		return x == y
	}
	return x.Conn() == y.Conn()
}

// pgxConn is a connection of the pool. With a transaction of the pool, pgx would
// return the connection when the callback ends the transaction, and its next user
// would be seen here.
type pgxConn struct {
	sqlkit.Pgx
	pooled    *pgxpool.Conn // nil once it was given back
	handle    *pgxHandle
	committed bool
}

// pgxHandle is pgx's own transaction, without the methods that end it.
type pgxHandle struct {
	pgx.Tx
	misused, over atomic.Bool
}

func (t *pgxHandle) Commit(context.Context) error { return t.refuse() }

func (t *pgxHandle) Rollback(context.Context) error { return t.refuse() }

func (t *pgxHandle) refuse() error {
	if t.over.Load() {
		return pgx.ErrTxClosed
	}
	t.misused.Store(true)
	return errNotYours
}

func (c *pgxConn) tx() pgx.Tx { return c.handle }

func (c *pgxConn) in() sqlkit.Querier { return sqlkit.Pgx{On: c.handle.Tx, Conn: c.Conn} }

// begin sends BEGIN and the statements in one round trip. A refused batch leaves
// the transaction open in the server; release rolls it back.
func (c *pgxConn) begin(ctx context.Context, level sql.IsolationLevel, marked bool, first ...statement) error {
	opts := pgx.TxOptions{IsoLevel: pgx.TxIsoLevel(strings.ToLower(level.String())), AccessMode: pgx.ReadWrite}
	if marked {
		opts.CommitQuery = checkedCommitSQL
	}
	b := &pgx.Batch{}
	b.BeginTx(opts)
	for _, s := range first {
		q := b.Queue(s.sql, s.args...)
		if s.dest != nil {
			q.QueryRow(func(row pgx.Row) error { return row.Scan(s.dest...) })
		}
	}
	br := c.Conn.SendBatch(ctx, b)
	c.handle = &pgxHandle{Tx: br.Tx()}
	return br.Close()
}

// checkedCommitSQL is one message, so that the server skips the COMMIT if the marker is
// missing. The error is recognised by the name of a setting that nobody has, whatever the
// server's language.
const (
	checkedCommitSQL = "SELECT pg_catalog.current_setting(CASE WHEN " + isMarkedSQL + " THEN 'fencepost.transaction' ELSE '" + noMarkerText + "' END); COMMIT"
	noMarkerText     = "fencepost: the transaction was ended"
)

// commit: on a connection without a transaction a COMMIT would succeed. The marker's check and
// COMMIT are one message: if no response comes, the marker was not seen. Two, with a flush between
// them, would sometimes show it, but pgx's own handle is closed only by a message of its own.
func (c *pgxConn) commit(ctx context.Context) (seen bool, err error) {
	switch native := c.Conn.PgConn(); {
	case native.TxStatus() == 'I': // before what says that nothing was committed
		return false, errEnded
	case c.handle.misused.Load():
		return false, errNotYours
	case c.Conn.IsClosed():
		return false, pgerr.NotSent(pgconn.ErrConnClosed)
	case native.IsBusy():
		return false, errUnread
	case native.TxStatus() == 'E':
		return false, sqlkit.ErrAborted
	}
	err = c.handle.Tx.Commit(ctx)
	var pg *pgconn.PgError
	switch {
	case errors.Is(err, pgx.ErrTxCommitRollback):
		return false, sqlkit.ErrAborted
	case errors.As(err, &pg) && strings.Contains(pg.Message, noMarkerText):
		return false, errEnded
	}
	c.committed = err == nil
	return c.committed, sqlkit.Replicated(c.Conn, err)
}

func (c *pgxConn) status(context.Context) txStatus { return statusOf(c.Conn) }

// statusOf also knows the last response of a session that is lost.
func statusOf(c *pgx.Conn) txStatus {
	native := c.PgConn()
	switch {
	case native.TxStatus() == 'I':
		return txNone
	case c.IsClosed() || native.IsBusy() || native.TxStatus() == 'E':
		return txUnseen
	}
	return txSome
}

func (c *pgxConn) rollback(ctx context.Context) outcome {
	switch {
	case c.Conn.IsClosed():
		return undoneByLoss
	case c.Conn.PgConn().IsBusy():
		c.cut()
		return notKnown
	}
	if c.handle != nil {
		c.handle.Tx.Rollback(ctx) // also closes pgx's handle, for whatever the callback got from it
	}
	if sqlkit.Busy(c.Conn) {
		c.Conn.Exec(ctx, "ROLLBACK")
	}
	if c.Conn.IsClosed() {
		return undoneByLoss
	}
	return undone
}

// cut ends a session that rows were left open in, or that a goroutine of the callback's uses.
func (c *pgxConn) cut() { c.Conn.PgConn().Conn().Close() }

func (c *pgxConn) release() {
	if c.pooled == nil {
		return
	}
	pooled := c.pooled
	c.pooled = nil
	// pgx panics if a goroutine of the callback's uses the connection at the same time, in the
	// pool's own goroutine too, which closes what is given back busy: such a one is taken out.
	defer func() {
		if recover() != nil || c.Conn.PgConn().IsBusy() {
			c.cut()
			pooled.Hijack()
			return
		}
		pooled.Release()
	}()
	if c.handle != nil {
		c.handle.over.Store(true)
	}
	if c.handle != nil && !c.committed || sqlkit.Busy(c.Conn) {
		ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
		defer cancel()
		c.rollback(ctx) // a connection that cannot roll back is closed, and the server rolls back
	}
}

// releaseTimeout bounds a rollback that nobody waits for.
const releaseTimeout = 5 * time.Second

// beginSQL begins a pipelined transaction.
const beginSQL = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"

// pipeline sends BEGIN, enter, the statement and COMMIT before one Sync: after an error the
// server skips the rest.
func (c *pgxConn) pipeline(ctx context.Context, enter statement, query string, args []any) (p pipelined) {
	if !c.pipelines() || len(args) > 0 && isOption(args[0]) {
		return pipelined{}
	}
	b := &pgx.Batch{}
	b.Queue(beginSQL)
	b.Queue(enter.sql, enter.args...)
	b.Queue(query, args...)
	b.Queue("COMMIT")
	br := c.Conn.SendBatch(ctx, b)
	var tag, end pgconn.CommandTag
	p.failed = atEnter
	if _, p.err = br.Exec(); p.err == nil {
		p.err = br.QueryRow().Scan(enter.dest...)
	}
	if p.err == nil {
		p.failed = atWork
		tag, p.err = br.Exec()
		p.rows, p.tag = tag.RowsAffected(), tag.String()
	}
	if p.err == nil {
		p.failed = atCommit
		end, p.err = br.Exec()
	}
	if closing := br.Close(); p.err == nil {
		p.err = closing
	}
	var unsent pgx.ErrPreprocessingBatch
	switch alive := !c.Conn.IsClosed(); {
	case p.err != nil && pgconn.SafeToRetry(p.err) && alive: // ctx had ended
		p.failed, p.err = atEnter, pgerr.NotSent(p.err)
	case errors.As(p.err, &unsent) && unsent.SQL() == query && ctx.Err() == nil && (alive || !sessionLost(p.err)): // it cannot be prepared, or the arguments do not fit
		p.failed, p.err = unsendable, unsent.Unwrap()
	case errors.As(p.err, &unsent) && !alive:
		p.err = pgerr.NotSent(p.err)
	case p.err != nil && pgerr.State(p.err) == "" && alive: // the same where nothing is prepared
		p.failed = unsendable
	case p.failed == atWork && p.err != nil && alive: // a response to Sync came: COMMIT was skipped
		p.failed = refused
	case p.err == nil && end.String() == "ROLLBACK":
		p.err = sqlkit.ErrAborted
	case p.err == nil:
		p.err = sqlkit.Replicated(c.Conn, nil)
	}
	if p.err == nil {
		p.failed = done
	}
	return p
}

// isOption reports an argument that is one of pgx's for Exec, and none of a batch's.
func isOption(arg any) bool {
	switch arg.(type) {
	case pgx.QueryExecMode, pgx.QueryResultFormats, pgx.QueryResultFormatsByOID:
		return true
	}
	return false
}

// pipelines reports whether the connection's exec mode sends each text as one statement,
// without describing it each time before BEGIN. pgx copies the configuration to show it, so
// it is kept with the connection.
func (c *pgxConn) pipelines() bool {
	const key = "fencepost.pipelines"
	data := c.Conn.PgConn().CustomData()
	pipelines, known := data[key].(bool)
	if !known {
		mode := c.Conn.Config().DefaultQueryExecMode
		pipelines = mode != pgx.QueryExecModeSimpleProtocol && mode != pgx.QueryExecModeDescribeExec
		data[key] = pipelines
	}
	return pipelines
}
