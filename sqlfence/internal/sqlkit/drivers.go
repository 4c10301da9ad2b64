package sqlkit

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
)

// errBusy refuses a connection in the middle of a transaction.
var errBusy = guard.Invalid("connection", "", "has a transaction open; it must be idle")

// ErrOnly refuses to wait forever.
var ErrOnly = guard.Invalid("connection", "", "is the pool's only one, and the enclosing InTx has it; call this before InTx, or give the pool more")

// ErrEncoding refuses a session whose client_encoding is another: the driver sends
// UTF-8, and the server would take a resource's bytes for other characters, and so
// compare with the mark of another resource.
var ErrEncoding = guard.Invalid("client_encoding", "", "must be UTF8: drivers send UTF-8, and under another setting a resource's name becomes another")

// EncodedSQL is an expression that fails in a session whose client_encoding is another,
// for transactions of a caller's that do not show it. NotEncoded recognises its error by
// the name of a setting that nobody has, whatever the server's language.
//
// FitSQL is EncodedSQL for the first statement of a transaction, and fails as well if an
// older transaction has written something on the connection: a BEGIN in it succeeds.
const (
	EncodedSQL = "pg_catalog.current_setting(CASE WHEN " + isEncodedSQL + " THEN 'client_encoding' ELSE '" + notEncodedText + "' END)"
	FitSQL     = "pg_catalog.current_setting(CASE WHEN NOT " + isEncodedSQL + " THEN '" + notEncodedText + "'" +
		" WHEN pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN '" + notIdleText + "' ELSE 'client_encoding' END)"
	isEncodedSQL   = "(pg_catalog.current_setting('client_encoding') OPERATOR(pg_catalog.=) ANY (ARRAY['UTF8', 'SQL_ASCII']))"
	notEncodedText = "fencepost: the client_encoding is another"
	notIdleText    = "fencepost: a transaction is open"
)

// NotEncoded reports the error of EncodedSQL.
func NotEncoded(err error) bool { return err != nil && strings.Contains(err.Error(), notEncodedText) }

// unfit returns what is wrong with a session, if err is that of EncodedSQL or FitSQL.
func unfit(err error) error {
	switch {
	case err == nil:
		return nil
	case NotEncoded(err):
		return ErrEncoding
	case strings.Contains(err.Error(), notIdleText):
		return errBusy
	}
	return nil
}

// Encoded returns ErrEncoding for a session that converts what it is sent.
func Encoded(c *pgx.Conn) error {
	if c == nil {
		return nil
	}
	switch c.PgConn().ParameterStatus("client_encoding") {
	case "UTF8", "SQL_ASCII", "": // the second converts nothing; the server always reports it
		return nil
	}
	return ErrEncoding
}

// PgxSent distinguishes an argument that could not be encoded from a lost
// response: pgx closes a connection if anything went wrong after writing to it.
func PgxSent(c *pgx.Conn, err error) error {
	switch {
	case errors.Is(err, pgx.ErrTxClosed): // and then c may be nil
		return pgerr.NotSent(err)
	case c == nil, err == nil || Explained(err) || pgerr.State(err) != "" || c.IsClosed() || pgconn.SafeToRetry(err) || errors.As(err, new(Unreadable)):
		return err
	}
	return Unsendable{err}
}

// Replicated returns [pgerr.ErrUnreplicated] for what c has committed without an
// error, if c shows warnings and one said that a synchronous standby may not have it.
func Replicated(c *pgx.Conn, err error) error {
	if err != nil || c == nil || Busy(c) {
		return err
	}
	return pgerr.Doubt(c.PgConn())
}

// Pgx is a connection, or a transaction on it.
type Pgx struct {
	On interface {
		Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
		Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	}
	Conn *pgx.Conn
}

func (q Pgx) Exec(ctx context.Context, sql string, args []any) (int64, error) {
	if err := Encoded(q.Conn); err != nil {
		return 0, pgerr.NotSent(err)
	}
	tag, err := q.On.Exec(ctx, sql, planless(sql, args)...)
	return tag.RowsAffected(), Replicated(q.Conn, PgxSent(q.Conn, replanned(sql, err)))
}

func (q Pgx) Query(ctx context.Context, sql string, args []any, each EachRow) error {
	if err := Encoded(q.Conn); err != nil {
		return pgerr.NotSent(err)
	}
	rows, err := q.On.Query(ctx, sql, planless(sql, args)...)
	if err == nil {
		defer rows.Close()
		err = readRows(rows, each)
	}
	return Replicated(q.Conn, PgxSent(q.Conn, replanned(sql, err)))
}

// planned has the statements whose plan was found outdated. pgx prepares such a one again, but
// a pooler that keeps prepared statements for all its clients (PgBouncer's
// max_prepared_statements) goes on with the old plan: from then on it is sent unprepared.
var planned struct {
	sync.Mutex
	outdated map[string]bool
}

// maxOutdated bounds planned. Forgetting costs an error each.
const maxOutdated = 1000

func replanned(sql string, err error) error {
	if pgerr.Replanned(err) {
		planned.Lock()
		defer planned.Unlock()
		if planned.outdated == nil || len(planned.outdated) >= maxOutdated {
			planned.outdated = map[string]bool{}
		}
		planned.outdated[sql] = true
	}
	return err
}

func planless(sql string, args []any) []any {
	planned.Lock()
	defer planned.Unlock()
	if planned.outdated[sql] {
		return append([]any{pgx.QueryExecModeExec}, args...)
	}
	return args
}

// StdExecer is a pool, a connection or a transaction of database/sql.
type StdExecer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Std is a connection or a transaction.
type Std struct{ On StdExecer }

func (q Std) Exec(ctx context.Context, query string, args []any) (int64, error) {
	res, err := q.On.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

func (q Std) Query(ctx context.Context, query string, args []any, each EachRow) error {
	rows, err := q.On.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	return readRows(rows, each)
}

// Busy reports whether a transaction is open: for a BEGIN in it the server would
// only give a warning.
func Busy(c *pgx.Conn) bool { return !c.IsClosed() && c.PgConn().TxStatus() != 'I' }

// usable refuses a connection in a transaction, and one of another encoding.
func usable(c *pgx.Conn) error {
	if c != nil && Busy(c) {
		return errBusy
	}
	if c != nil {
		_ = pgerr.Doubt(c.PgConn()) // about what somebody else committed
	}
	return Encoded(c)
}

// PgxPool is a *pgxpool.Pool, or a type that embeds one.
type PgxPool interface {
	Acquire(ctx context.Context) (*pgxpool.Conn, error)
}

// AcquirePgx returns a connection without a transaction. Its errors are known to
// have sent nothing.
func AcquirePgx(ctx context.Context, pool PgxPool) (*pgxpool.Conn, error) {
	c, err := pool.Acquire(ctx)
	if err != nil {
		return nil, unavailable(err)
	}
	if err := usable(c.Conn()); err != nil {
		c.Release()
		return nil, err
	}
	return c, nil
}

// unavailable marks the error of a pool that has no connection. No other try helps where the
// pool was closed, which neither driver's pool says in another way than by this text.
func unavailable(err error) error {
	switch err.Error() {
	case "closed pool", "sql: database is closed":
		return pgerr.Closed(err)
	}
	return pgerr.NotSent(err)
}

// StdConn is a connection of database/sql.
type StdConn struct {
	Std
	Pooled *sql.Conn
	Native *pgx.Conn // the one under it, if the driver is pgx's stdlib
}

// StdPool is a *sql.DB, or a type that embeds one. A pool's own ExecContext sends a
// statement again if the driver says ErrBadConn, which pgx's stdlib also says of a
// response that was lost: a statement that commits is sent on a connection.
type StdPool interface {
	Conn(ctx context.Context) (*sql.Conn, error)
}

// AcquireStd is [AcquirePgx] for database/sql.
func AcquireStd(ctx context.Context, db StdPool) (StdConn, error) {
	pooled, err := db.Conn(ctx)
	if err != nil {
		return StdConn{}, unavailable(err)
	}
	c := StdConn{Std: Std{pooled}, Pooled: pooled}
	pooled.Raw(func(driverConn any) error {
		if d, ok := driverConn.(interface{ Conn() *pgx.Conn }); ok {
			c.Native = d.Conn()
		}
		return nil
	})
	if err := usable(c.Native); err != nil {
		pooled.Close()
		return StdConn{}, err
	}
	return c, nil
}

// Replicated is [Replicated] for a transaction that was committed.
func (c StdConn) Replicated(err error) error {
	if err != nil || c.Native == nil {
		return err
	}
	return c.Pooled.Raw(func(any) error { return Replicated(c.Native, nil) })
}

// Exec and Query prefer pgx's own connection, which tells whether anything was
// sent: pgx's stdlib returns ErrBadConn, which should mean that nothing was,
// for errors that do not mean that.
func (c StdConn) Exec(ctx context.Context, query string, args []any) (int64, error) {
	if c.Native != nil {
		return Pgx{c.Native, c.Native}.Exec(ctx, query, args)
	}
	return c.Std.Exec(ctx, query, args)
}

// Query is [Std.Query], whose error says whether anything was sent. What fails once
// there are rows was sent, also if it is the end of the context.
func (c StdConn) Query(ctx context.Context, query string, args []any, each EachRow) error {
	if c.Native == nil {
		return c.Std.Query(ctx, query, args, each)
	}
	rows, err := c.On.QueryContext(ctx, query, planless(query, args)...)
	if err != nil {
		return PgxSent(c.Native, replanned(query, err))
	}
	err = replanned(query, readRows(rows, each))
	rows.Close()
	return Replicated(c.Native, err)
}

// Inside is the key under which the context of a fenced transaction's callback has
// something: it says that the callback's connection is one of this pool.
type Inside struct{ Pool any }

// InTx reports that ctx is that of a callback whose transaction is on the pool.
func InTx(ctx context.Context, pool any) bool { return ctx.Value(Inside{pool}) != nil }
