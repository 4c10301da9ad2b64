package sqlrow

import (
	"context"
	"database/sql"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
)

// Options configures [Pgx] and [Std]. The zero value is the default.
type Options struct {
	// Observer receives an event for every write and raise; nil means none.
	Observer guard.Observer
}

// DB is a PostgreSQL database with guarded tables. Tx is its driver's transaction:
// make a DB[pgx.Tx] with [Pgx] and a DB[*sql.Tx] with [Std]; both run the same
// statements. The zero value is not usable. It is safe for concurrent use, and owns
// neither the pool nor its connections.
type DB[Tx any] struct {
	pool      any
	acquire   func(ctx context.Context) (q sqlkit.Querier, release func(), err error)
	in        func(tx Tx) sqlkit.Querier
	hides     bool // a transaction does not show its session's encoding
	observer  guard.Observer
	inspected sync.Map // IDs of the tables that were inspected
}

// Pgx returns a [DB] on a pgx pool. It sends nothing. opts may be nil; the error is
// an [*guard.InvalidError]. Every exec mode of pgx works.
func Pgx(pool *pgxpool.Pool, opts *Options) (*DB[pgx.Tx], error) {
	if pool == nil {
		return nil, guard.Invalid("pool", "nil", "must not be nil")
	}
	return newDB(pool, opts, func(ctx context.Context) (sqlkit.Querier, func(), error) {
		c, err := sqlkit.AcquirePgx(ctx, pool)
		if err != nil {
			return nil, nil, err
		}
		return sqlkit.Pgx{On: c.Conn(), Conn: c.Conn()}, c.Release, nil
	}, func(tx pgx.Tx) sqlkit.Querier { return sqlkit.Pgx{On: tx, Conn: sqlkit.ConnOf(tx)} }), nil
}

// Std is [Pgx] for database/sql with a PostgreSQL driver. The reasons of a refusal
// come from the server's SQLSTATE, which is available from every driver whose
// errors have a SQLState method (pgx's stdlib, lib/pq).
func Std(db *sql.DB, opts *Options) (*DB[*sql.Tx], error) {
	if db == nil {
		return nil, guard.Invalid("db", "nil", "must not be nil")
	}
	d := newDB(db, opts, func(ctx context.Context) (sqlkit.Querier, func(), error) {
		c, err := sqlkit.AcquireStd(ctx, db)
		if err != nil {
			return nil, nil, err
		}
		return c, func() { c.Pooled.Close() }, nil
	}, func(tx *sql.Tx) sqlkit.Querier { return sqlkit.Std{On: tx} })
	d.hides = true
	return d, nil
}

func newDB[Tx any](pool any, opts *Options, acquire func(context.Context) (sqlkit.Querier, func(), error), in func(Tx) sqlkit.Querier) *DB[Tx] {
	d := &DB[Tx]{pool: pool, acquire: acquire, in: in}
	if opts != nil {
		d.observer = opts.Observer
	}
	return d
}

// Querier is where a [Table] sends its statements: a [DB], or one of its
// transactions through [DB.In].
type Querier interface {
	exec(ctx context.Context, sql string, args []any) (int64, error)
	query(ctx context.Context, sql string, args []any, each sqlkit.EachRow) error
	observe(ctx context.Context, e guard.Event)
	// autocommit reports whether a statement commits by itself.
	autocommit() bool
	// usable refuses the DB itself inside an InTx on its pool, and tables that cannot
	// keep a mark.
	usable(ctx context.Context, t *Table) error
}

// exec and query are never repeated: what they run commits by itself.
func (d *DB[Tx]) exec(ctx context.Context, sql string, args []any) (int64, error) {
	q, release, err := d.acquire(ctx)
	if err != nil {
		return 0, err
	}
	defer release()
	return q.Exec(ctx, sql, args)
}

func (d *DB[Tx]) query(ctx context.Context, sql string, args []any, each sqlkit.EachRow) error {
	q, release, err := d.acquire(ctx)
	if err != nil {
		return err
	}
	defer release()
	return q.Query(ctx, sql, args, each)
}

func (d *DB[Tx]) observe(ctx context.Context, e guard.Event) {
	if d.observer == nil {
		return
	}
	e.Surface = guard.SurfaceSQL
	e.Reason = guard.ReasonOf(e.Err)
	d.observer.Observe(ctx, e)
}

func (d *DB[Tx]) autocommit() bool { return true }

func (d *DB[Tx]) usable(ctx context.Context, t *Table) error {
	if sqlkit.InTx(ctx, d.pool) {
		return guard.Invalid("Querier", "DB", "is used inside an InTx on its pool, whose transaction would not have the statement; pass DB.In(tx) instead")
	}
	return d.guardable(ctx, d, t)
}

// In returns a [Querier] that runs the statements of a [Table] in tx: they
// compare with the row's mark as always, and take effect when tx commits. tx
// may be one that sqlfence's InTx opened or any other transaction of the driver. Until it
// ends the row is locked, also against a newer holder's [Table.Raise]. On
// database/sql each use of a Table in it is preceded by a look at client_encoding.
func (d *DB[Tx]) In(tx Tx) Querier { return &txQuerier[Tx]{on: d.in(tx), db: d} }

type txQuerier[Tx any] struct {
	on sqlkit.Querier
	db *DB[Tx]
}

func (q *txQuerier[Tx]) exec(ctx context.Context, sql string, args []any) (int64, error) {
	return q.on.Exec(ctx, sql, args)
}

func (q *txQuerier[Tx]) query(ctx context.Context, sql string, args []any, each sqlkit.EachRow) error {
	return q.on.Query(ctx, sql, args, each)
}

func (q *txQuerier[Tx]) observe(ctx context.Context, e guard.Event) { q.db.observe(ctx, e) }

func (q *txQuerier[Tx]) autocommit() bool { return false }

// usable also refuses a session that takes a key's bytes for other characters.
func (q *txQuerier[Tx]) usable(ctx context.Context, t *Table) error {
	if q.db.hides {
		var encoding string
		_, err := row(ctx, q, "SELECT "+sqlkit.EncodedSQL, nil, &encoding)
		if sqlkit.NotEncoded(err) {
			return sqlkit.ErrEncoding
		}
		if err != nil {
			return t.failure("look at the session", guard.Claim{}, err, false)
		}
	}
	return q.db.guardable(ctx, q, t)
}

// row reads the one row that a statement returns, if there is one.
func row(ctx context.Context, q Querier, sql string, args []any, dest ...any) (found bool, err error) {
	err = q.query(ctx, sql, args, func(scan func(dest ...any) error) error { found = true; return scan(dest...) })
	return found && err == nil, err
}
