package sqlfence

import (
	"context"
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
	c := &pgxConn{pool: b.conns}
	if err := c.ready(ctx); err != nil {
		return nil, err
	}
	return c, nil
}

func (b pgxBackend) hold(ctx context.Context, begin func(context.Context, held[pgx.Tx], *pgxFirst) error) (conn[pgx.Tx], error) {
	c := &pgxConn{pool: b.conns}
	c.handle = &pgxHandle{conn: c, ctx: ctx, begin: func(ctx context.Context, with *pgxFirst) error { return begin(ctx, c, with) }}
	if err := c.ready(ctx); err != nil {
		return nil, err
	}
	return c, nil
}

func (b pgxBackend) single() bool { return b.conns.Stat().MaxConns() == 1 }

func (b pgxBackend) exhausted() bool {
	s := b.conns.Stat()
	return s.AcquiredConns() >= s.MaxConns()
}

func (b pgxBackend) pool() any { return b.conns }

func (b pgxBackend) in(tx pgx.Tx) sqlkit.Querier { return sqlkit.Pgx{On: tx, Conn: sqlkit.ConnOf(tx)} }

// same compares the connections, because a pgx savepoint has its own handle. x is a callback's, and
// may be in use.
func (b pgxBackend) same(x, y pgx.Tx) bool {
	own := x.(*pgxHandle).conn
	if handle, is := y.(*pgxHandle); is {
		return handle.conn == own
	}
	return own.native.Load() == y.Conn()
}

// pgxConn is a connection of the pool. With a transaction of the pool, pgx would
// return the connection when the callback ends the transaction, and its next user
// would be seen here.
type pgxConn struct {
	sqlkit.Pgx
	pool   *pgxpool.Pool
	pooled *pgxpool.Conn // nil once it was given back
	native atomic.Pointer[pgx.Conn]
	since  time.Time  // when it was acquired
	open   pgx.Tx     // pgx's own handle of the transaction begun last
	handle *pgxHandle // the callback's
	marker string
	// mayHaveEnded: something was sent that can end the transaction, so that COMMIT has to
	// look for the marker.
	mayHaveEnded bool
	// mayHaveCommitted: a COMMIT may have been among what can end it.
	mayHaveCommitted bool
}

// ready acquires the connection, and another one if it has ended. As the pool does, it pings
// one that was held for a second without a transaction.
func (c *pgxConn) ready(ctx context.Context) error {
	if c.Conn != nil && !c.begun() && time.Since(c.since) > time.Second {
		c.Conn.Ping(ctx)
	}
	if c.Conn != nil && !c.Conn.IsClosed() {
		return nil
	}
	if c.pooled != nil {
		c.pooled.Release()
		c.pooled = nil
	}
	pooled, err := sqlkit.AcquirePgx(ctx, c.pool)
	if err != nil {
		return err
	}
	c.pooled, c.Pgx, c.since = pooled, sqlkit.Pgx{On: pooled.Conn(), Conn: pooled.Conn()}, time.Now()
	c.native.Store(pooled.Conn())
	return nil
}

func (c *pgxConn) tx() pgx.Tx {
	if c.handle == nil {
		c.handle = &pgxHandle{Tx: c.open, conn: c}
	}
	return c.handle
}

func (c *pgxConn) in() sqlkit.Querier { return sqlkit.Pgx{On: c.open, Conn: c.Conn} }

func (c *pgxConn) begun() bool { return c.open != nil }

func (c *pgxConn) committed() bool { return c.mayHaveCommitted }

func (c *pgxConn) start(ctx context.Context) error { return c.handle.start(ctx, nil) }

// pgxBegin returns a batch that begins a transaction with some statements.
func pgxBegin(how txMode, first ...statement) *pgx.Batch {
	b := &pgx.Batch{}
	b.BeginTx(pgx.TxOptions{IsoLevel: pgx.TxIsoLevel(strings.ToLower(how.level.String())), AccessMode: pgx.ReadWrite})
	for _, s := range first {
		q := b.Queue(s.sql, s.args...)
		if s.dest != nil {
			q.QueryRow(func(row pgx.Row) error { return row.Scan(s.dest...) })
		}
	}
	return b
}

// begin sends BEGIN and the statements in one round trip, and the callback's first ones if they
// can go with them. A refused batch leaves the transaction open in the server; DB.with rolls
// it back.
func (c *pgxConn) begin(ctx context.Context, how txMode, first ...statement) error {
	b := pgxBegin(how, first...)
	own := b.QueuedQueries
	together := how.with != nil && sessionOf(c.Conn).together(how.with.queries)
	if together {
		for _, q := range how.with.queries { // copies, since pgx remembers with them how they were sent
			b.Queue(q.SQL, q.Arguments...).Fn = q.Fn
		}
	}
	br := c.Conn.SendBatch(ctx, b)
	c.open, c.marker = br.Tx(), how.marker
	if !together {
		return br.Close()
	}
	for i, q := range own {
		var err error
		if q.Fn != nil {
			err = q.Fn(br)
		} else {
			_, err = br.Exec()
		}
		if err == nil {
			continue
		}
		for _, q := range b.QueuedQueries[len(own):] {
			q.Fn = nil // they were not executed
		}
		br.Close()
		if unsendable := errors.As(err, new(pgx.ErrPreprocessingBatch)); i > 0 || c.Conn.IsClosed() && !unsendable {
			if pgerr.State(err) == "" {
				how.with.cut = true
			}
			return err
		}
		// One of the statements could not be prepared or its arguments not encoded, and
		// it may be the callback's: then that is not an error of BEGIN. pgx may have
		// closed the connection.
		c.rollback()
		if err := c.ready(ctx); err != nil {
			return err
		}
		how.with = nil
		return c.begin(ctx, how, first...)
	}
	how.with.results = br
	return nil
}

// commit commits. If the session ended after a COMMIT of the callback's own, the outcome is
// unknown.
func (c *pgxConn) commit(ctx context.Context, bound *commitBound) error {
	err := c.checkAndCommit(ctx, bound)
	if err != nil && c.mayHaveCommitted && c.Conn.IsClosed() {
		return errEnded
	}
	return err
}

// checkAndCommit sends COMMIT, and if the callback may have ended the transaction, the check for
// the marker in the same round trip. Both come before one Sync, or are one message of the simple protocol, so that the server
// skips the COMMIT if the marker is missing.
func (c *pgxConn) checkAndCommit(ctx context.Context, bound *commitBound) error {
	if err := committable(c.Conn); err != nil {
		return err
	}
	if c.marker == "" || !c.mayHaveEnded {
		err := c.open.Commit(bound.context(ctx))
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
	case c.PgConn().IsBusy():
		return pgerr.NotSent(errUnread)
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
	c.rollback()
	if c.handle != nil {
		c.handle.end()
	}
	if c.pooled != nil {
		c.pooled.Release()
	}
}

func (c *pgxConn) rollback() {
	if c.open != nil && (sqlkit.Busy(c.Conn) || c.Conn.PgConn().IsBusy()) {
		ctx, cancel := context.WithTimeout(context.Background(), rollbackTimeout)
		defer cancel()
		c.open.Rollback(ctx) // a connection that cannot roll back is closed, and the server rolls back
	}
}

// unprepared reports that a statement of a batch could not be prepared: nothing of
// the batch was sent.
func unprepared(err error) bool {
	return err != nil && strings.HasPrefix(err.Error(), "error preprocessing batch (prepare)")
}
