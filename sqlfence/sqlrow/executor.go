package sqlrow

import (
	"context"
	"database/sql"

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
	// commits reports whether a statement commits by itself.
	commits() bool
	// usable refuses nil, and a pool inside an InTx on it.
	usable(ctx context.Context) error
}

// Pgx returns an [Executor] on a pool, a connection or a transaction of pgx. It sends
// nothing. Every exec mode of pgx works.
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
		return executor{pool: on, acquire: func(ctx context.Context) (sqlkit.Querier, func(), error) {
			c, err := sqlkit.AcquirePgx(ctx, on)
			if err != nil {
				return nil, nil, err
			}
			return sqlkit.Pgx{On: c.Conn(), Conn: c.Conn()}, c.Release, nil
		}}
	case pgx.Tx:
		return executor{acquire: without(sqlkit.Pgx{On: on, Conn: sqlkit.ConnOf(on)}), inTx: true}
	case *pgx.Conn:
		return executor{acquire: without(sqlkit.Pgx{On: on, Conn: on}), inTx: on != nil && sqlkit.Busy(on)}
	case *pgxpool.Conn:
		return executor{acquire: without(sqlkit.Pgx{On: on, Conn: on.Conn()}), inTx: sqlkit.Busy(on.Conn())}
	}
	return executor{acquire: without(sqlkit.Pgx{On: on})}
}

// Std is [Pgx] for database/sql with a PostgreSQL driver. The reasons of a refusal
// come from the server's SQLSTATE, which is available from every driver whose
// errors have a SQLState method, as those of pgx's stdlib have.
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
		return executor{pool: on, acquire: func(ctx context.Context) (sqlkit.Querier, func(), error) {
			c, err := sqlkit.AcquireStd(ctx, on)
			if err != nil {
				return nil, nil, err
			}
			return c, func() { c.Pooled.Close() }, nil
		}}
	}
	_, inTx := on.(interface{ Rollback() error })
	return executor{acquire: without(sqlkit.Std{On: on}), inTx: inTx}
}

type executor struct {
	pool    any // nil for a connection or a transaction
	acquire func(ctx context.Context) (q sqlkit.Querier, release func(), err error)
	inTx    bool
}

// without is the acquire of what is not acquired.
func without(q sqlkit.Querier) func(context.Context) (sqlkit.Querier, func(), error) {
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

func (e executor) commits() bool { return !e.inTx }

func (e executor) usable(ctx context.Context) error {
	switch {
	case e.acquire == nil:
		return guard.Invalid("Executor", "nil", "must be made of a pool, a connection or a transaction")
	case e.pool != nil && sqlkit.InTx(ctx, e.pool):
		return guard.Invalid("Executor", "a pool", "is used inside an InTx on it, whose transaction would not have the statement; pass sqlrow.Pgx(tx) or sqlrow.Std(tx)")
	}
	return nil
}
