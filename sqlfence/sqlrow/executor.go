package sqlrow

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
)

// Executor is where a [Table] sends its statements: [Pgx] and [Std] make one of a pool,
// a connection or a transaction, where it is needed. It holds nothing else.
type Executor interface {
	exec(ctx context.Context, sql string, args []any) (int64, error)
	query(ctx context.Context, sql string, args []any, each sqlkit.EachRow) error
	// use refuses nil, and a pool inside an InTx on it. commits reports whether a statement
	// that is sent now commits by itself.
	use(ctx context.Context) (commits bool, err error)
}

// Pgx returns an [Executor] on a pool, a connection or a transaction of pgx. It sends
// nothing. Every exec mode of pgx works. A type that embeds a pool is used through one of
// the pool's connections.
//
// In a transaction, which may be that of sqlfence's InTx, statements compare with the
// row's mark as always, and take effect when it commits. Until it ends the row is locked,
// also against a newer holder's [Table.Raise].
func Pgx(on interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}) Executor {
	switch on := on.(type) {
	case nil:
		return executor{}
	case *pgxpool.Pool:
		if on == nil {
			return executor{}
		}
	case *pgx.Conn:
		if on == nil {
			return executor{}
		}
		return heldPgx(sqlkit.Pgx{On: on}, func() *pgx.Conn { return on })
	case *pgxpool.Conn:
		return heldPgx(sqlkit.Pgx{On: on}, on.Conn)
	case pgx.Tx:
		return heldPgx(sqlkit.Pgx{On: on}, on.Conn)
	}
	if pool, ok := on.(sqlkit.PgxPool); ok {
		return executor{pool: on, acquire: func(ctx context.Context) (sqlkit.Querier, func(), error) {
			c, err := sqlkit.AcquirePgx(ctx, pool)
			if err != nil {
				return nil, nil, err
			}
			return sqlkit.Pgx{On: c.Conn(), Conn: c.Conn()}, c.Release, nil
		}}
	}
	return executor{acquire: borrowed(sqlkit.Pgx{On: on})}
}

// heldPgx is what the caller has: a connection, or a transaction. Nothing that is sent on it now
// commits if a transaction is open, which a COMMIT as text ends as well, or if it is closed.
func heldPgx(q sqlkit.Pgx, conn func() *pgx.Conn) executor {
	return executor{
		inTx: func() bool { c := conn(); return c == nil || c.IsClosed() || sqlkit.Busy(c) },
		acquire: func(context.Context) (sqlkit.Querier, func(), error) {
			return sqlkit.Pgx{On: q.On, Conn: conn()}, func() {}, nil
		},
	}
}

// Std is [Pgx] for database/sql with a PostgreSQL driver. The reasons of a refusal
// come from the server's SQLSTATE, which is available from every driver whose
// errors have a SQLState method, as those of pgx's stdlib have.
//
// A type that embeds a *sql.DB, *sql.Conn or *sql.Tx, as sqlx's types do, is used as what
// it embeds. Anything else is refused with guard.ErrInvalid: a *sql.DB inside it would
// send a write that was committed a second time.
func Std(on interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}) Executor {
	switch on := on.(type) {
	case nil:
		return executor{}
	case *sql.DB:
		if on == nil {
			return executor{}
		}
	case interface{ Rollback() error }:
		return executor{inTx: func() bool { return true }, acquire: borrowed(sqlkit.Std{On: on.(sqlkit.StdExecer)})}
	case interface {
		Raw(func(driverConn any) error) error
	}:
		return executor{acquire: borrowed(sqlkit.Std{On: on.(sqlkit.StdExecer)})}
	}
	if pool, ok := on.(sqlkit.StdPool); ok {
		return executor{pool: on, acquire: func(ctx context.Context) (sqlkit.Querier, func(), error) {
			c, err := sqlkit.AcquireStd(ctx, pool)
			if err != nil {
				return nil, nil, err
			}
			return c, func() { c.Pooled.Close() }, nil
		}}
	}
	return executor{unknown: fmt.Sprintf("%T", on)}
}

type executor struct {
	pool    any // nil for a connection or a transaction
	acquire func(ctx context.Context) (q sqlkit.Querier, release func(), err error)
	inTx    func() bool // asked when the executor is used: it may be kept longer than a transaction; nil: never
	unknown string      // the type of what is neither a pool nor a connection nor a transaction
}

func borrowed(q sqlkit.Querier) func(context.Context) (sqlkit.Querier, func(), error) {
	return func(context.Context) (sqlkit.Querier, func(), error) { return q, func() {}, nil }
}

// exec and query are never repeated: what they run may commit by itself.
func (e executor) exec(ctx context.Context, sql string, args []any) (int64, error) {
	q, release, err := e.acquire(ctx)
	if err != nil {
		return 0, err
	}
	defer release()
	return q.Exec(ctx, sql, args)
}

func (e executor) query(ctx context.Context, sql string, args []any, each sqlkit.EachRow) error {
	q, release, err := e.acquire(ctx)
	if err != nil {
		return err
	}
	defer release()
	return q.Query(ctx, sql, args, each)
}

func (e executor) use(ctx context.Context) (commits bool, err error) {
	switch {
	case e.unknown != "":
		return false, guard.Invalid("Executor", e.unknown, "must be or embed a *sql.DB, a *sql.Conn or a *sql.Tx")
	case e.acquire == nil:
		return false, guard.Invalid("Executor", "nil", "must be made of a pool, a connection or a transaction")
	case e.pool != nil && sqlkit.InTx(ctx, e.pool):
		return false, guard.Invalid("Executor", "a pool", "is used inside an InTx on it, whose transaction would not have the statement; pass sqlrow.Pgx(tx) or sqlrow.Std(tx)")
	}
	return e.inTx == nil || !e.inTx(), nil
}
