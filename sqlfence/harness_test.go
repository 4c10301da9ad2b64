package sqlfence

import (
	"context"
	"database/sql"
	"iter"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/longtest"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"
	"github.com/fencepost-go/fencepost/sqlfence/sqlrow"
)

// campaign is how long a random test is: twenty times n in the long form.
func campaign(n int) int { return longtest.ByLength(n, 20*n) }

// crowd is how many clients of a random test get in each other's way.
var crowd = longtest.ByLength(6, 12)

// Isolation and its levels are shorter here.
type Isolation = sql.IsolationLevel

const (
	ReadCommitted  = sql.LevelReadCommitted
	RepeatableRead = sql.LevelRepeatableRead
	Serializable   = sql.LevelSerializable
)

// The other packages' names are shorter here, too.
type (
	Table         = sqlrow.Table
	TableOptions  = sqlrow.TableOptions
	Key           = sqlrow.Key
	Set           = sqlrow.Set
	Dest          = sqlrow.Dest
	Trigger       = sqladmin.Trigger
	TriggerStatus = sqladmin.TriggerStatus
	RoleNames     = sqladmin.RoleNames
	Verification  = sqladmin.Verification
	Finding       = sqladmin.Finding
)

// operator has an Admin's calls under a DB's, which has a Retire of its own.
type operator struct{ *sqladmin.Admin }

func (o operator) RetireUpTo(ctx context.Context, before time.Time, issuersLast guard.Token) (guard.Retired, error) {
	return o.Retire(ctx, before, issuersLast)
}

func (o operator) Reset(ctx context.Context, resource string, from, to guard.Mark, issuersLast guard.Token, actor, reason string) error {
	return o.Admin.Reset(ctx, sqladmin.MarkReset{Resource: resource, From: from, To: to, IssuersLast: issuersLast, Actor: actor, Reason: reason})
}

func (o operator) ResetFloor(ctx context.Context, from, to, issuersLast guard.Token, actor, reason string) error {
	return o.Admin.ResetFloor(ctx, sqladmin.FloorReset{From: from, To: to, IssuersLast: issuersLast, Actor: actor, Reason: reason})
}

// operations are an operator's.
type operations interface {
	Migrate(ctx context.Context) error
	RetireUpTo(ctx context.Context, before time.Time, issuersLast guard.Token) (guard.Retired, error)
	Reset(ctx context.Context, resource string, from, to guard.Mark, issuersLast guard.Token, actor, reason string) error
	ResetFloor(ctx context.Context, from, to, issuersLast guard.Token, actor, reason string) error
	Resets(ctx context.Context, after int64) iter.Seq2[sqladmin.Reset, error]
	Marks(ctx context.Context, prefix string) iter.Seq2[sqladmin.ResourceMark, error]
}

// fence is a DB of either driver, with the type of its transactions erased, so
// that each test is written once.
type fence interface {
	guard.Store
	Querier
	Raise(ctx context.Context, claim guard.Claim) error
	operations
	enforcement
	row(ctx context.Context, sql string, args []any, dest ...any) (found bool, err error)
	Resolve(ctx context.Context, err error) (bool, error)
	// fencedExec is the DB's Exec; Exec is a statement that nothing fences.
	fencedExec(ctx context.Context, claim guard.Claim, sql string, args ...any) (int64, error)
	// fencedAll is InTxAll, fenced is InTx; plain and unfenced are what a user has without sqlfence:
	// a transaction of the server's default level, and a statement.
	fencedAll(ctx context.Context, claims []guard.Claim, opts *TxOptions, fn func(ctx context.Context, tx testTx) error) error
	fenced(ctx context.Context, claim guard.Claim, fn func(ctx context.Context, tx testTx) error) error
	plain(ctx context.Context, fn func(ctx context.Context, tx testTx) error) error
	unfenced(ctx context.Context, sql string, args ...any) error
	inUse() int
	close()
}

// testTx is a transaction of either driver.
type testTx interface {
	exec(ctx context.Context, sql string, args ...any) (int64, error)
	int(ctx context.Context, sql string, args ...any) (int64, error)
	in() Querier
	present(ctx context.Context, claims ...guard.Claim) error
	enter(ctx context.Context, claims ...guard.Claim) error
	end(commit bool) error
}

type pgxFence struct {
	*DB[pgx.Tx]
	rowQuerier
	operator
	pool *pgxpool.Pool
}

func (f pgxFence) unfenced(ctx context.Context, sql string, args ...any) error {
	_, err := f.pool.Exec(ctx, sql, args...)
	return err
}

func (f pgxFence) Exec(ctx context.Context, sql string, args []any) (int64, error) {
	return f.rowQuerier.Exec(ctx, sql, args)
}

func (f pgxFence) fencedExec(ctx context.Context, claim guard.Claim, sql string, args ...any) (int64, error) {
	return f.DB.Exec(ctx, claim, sql, args...)
}

func (f pgxFence) inUse() int { return int(f.pool.Stat().AcquiredConns()) }
func (f pgxFence) close()     { f.pool.Close() }

func (f pgxFence) fenced(ctx context.Context, claim guard.Claim, fn func(context.Context, testTx) error) error {
	return f.InTx(ctx, claim, func(ctx context.Context, tx pgx.Tx) error { return fn(ctx, pgxTx{tx, f.DB}) })
}

func (f pgxFence) fencedAll(ctx context.Context, claims []guard.Claim, opts *TxOptions, fn func(context.Context, testTx) error) error {
	return f.InTxAll(ctx, claims, opts, func(ctx context.Context, tx pgx.Tx) error { return fn(ctx, pgxTx{tx, f.DB}) })
}

func (f pgxFence) plain(ctx context.Context, fn func(context.Context, testTx) error) error {
	return pgx.BeginFunc(ctx, f.pool, func(tx pgx.Tx) error { return fn(ctx, pgxTx{tx, f.DB}) })
}

type pgxTx struct {
	tx pgx.Tx
	db *DB[pgx.Tx]
}

func (t pgxTx) exec(ctx context.Context, sql string, args ...any) (int64, error) {
	tag, err := t.tx.Exec(ctx, sql, args...)
	return tag.RowsAffected(), err
}

func (t pgxTx) int(ctx context.Context, sql string, args ...any) (n int64, err error) {
	err = t.tx.QueryRow(ctx, sql, args...).Scan(&n)
	return n, err
}

func (t pgxTx) present(ctx context.Context, claims ...guard.Claim) error {
	return t.db.Present(ctx, t.tx, claims...)
}

func (t pgxTx) enter(ctx context.Context, claims ...guard.Claim) error {
	return t.db.Enter(ctx, t.tx, claims...)
}

func (t pgxTx) in() Querier {
	return rowQuerier{sqlrow.Pgx(t.tx), sqlkit.Pgx{On: t.tx, Conn: t.tx.Conn()}}
}

func (t pgxTx) end(commit bool) error {
	if commit {
		return t.tx.Commit(context.Background())
	}
	return t.tx.Rollback(context.Background())
}

type stdFence struct {
	*DB[*sql.Tx]
	rowQuerier
	operator
	pool *sql.DB
}

func (f stdFence) unfenced(ctx context.Context, query string, args ...any) error {
	_, err := f.pool.ExecContext(ctx, query, args...)
	return err
}

func (f stdFence) Exec(ctx context.Context, sql string, args []any) (int64, error) {
	return f.rowQuerier.Exec(ctx, sql, args)
}

func (f stdFence) fencedExec(ctx context.Context, claim guard.Claim, sql string, args ...any) (int64, error) {
	return f.DB.Exec(ctx, claim, sql, args...)
}

func (f stdFence) inUse() int { return f.pool.Stats().InUse }
func (f stdFence) close()     { f.pool.Close() }

func (f stdFence) fenced(ctx context.Context, claim guard.Claim, fn func(context.Context, testTx) error) error {
	return f.InTx(ctx, claim, func(ctx context.Context, tx *sql.Tx) error { return fn(ctx, stdTx{tx, f.DB}) })
}

func (f stdFence) fencedAll(ctx context.Context, claims []guard.Claim, opts *TxOptions, fn func(context.Context, testTx) error) error {
	return f.InTxAll(ctx, claims, opts, func(ctx context.Context, tx *sql.Tx) error { return fn(ctx, stdTx{tx, f.DB}) })
}

func (f stdFence) plain(ctx context.Context, fn func(context.Context, testTx) error) error {
	tx, err := f.pool.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := fn(ctx, stdTx{tx, f.DB}); err != nil {
		return err
	}
	return tx.Commit()
}

type stdTx struct {
	tx *sql.Tx
	db *DB[*sql.Tx]
}

func (t stdTx) exec(ctx context.Context, query string, args ...any) (int64, error) {
	return sqlkit.Std{On: t.tx}.Exec(ctx, query, args)
}

func (t stdTx) int(ctx context.Context, query string, args ...any) (n int64, err error) {
	err = t.tx.QueryRowContext(ctx, query, args...).Scan(&n)
	return n, err
}

func (t stdTx) present(ctx context.Context, claims ...guard.Claim) error {
	return t.db.Present(ctx, t.tx, claims...)
}

func (t stdTx) enter(ctx context.Context, claims ...guard.Claim) error {
	return t.db.Enter(ctx, t.tx, claims...)
}

func (t stdTx) in() Querier { return rowQuerier{sqlrow.Std(t.tx), sqlkit.Std{On: t.tx}} }

func (t stdTx) end(commit bool) error {
	if commit {
		return t.tx.Commit()
	}
	return t.tx.Rollback()
}

// sessions are a pool of one driver's connections, which several DBs may use.
type sessions interface {
	fence(opts *Options) (fence, error)
	inUse() int
	close()
}

type pgxSessions struct{ pool *pgxpool.Pool }

func (s pgxSessions) inUse() int { return int(s.pool.Stat().AcquiredConns()) }
func (s pgxSessions) close()     { s.pool.Close() }

func (s pgxSessions) fence(opts *Options) (fence, error) {
	db, err := Pgx(s.pool, opts)
	if err != nil {
		return nil, err
	}
	return pgxFence{db, rowQuerier{sqlrow.Pgx(s.pool), sqlkit.Pgx{On: s.pool}}, operator{sqladmin.Pgx(s.pool)}, s.pool}, nil
}

// stdSessions have a pool of pgx beside theirs, for operators.
type stdSessions struct {
	pool  *sql.DB
	admin pgxSessions
}

func (s stdSessions) inUse() int { return s.pool.Stats().InUse + s.admin.inUse() }

func (s stdSessions) close() {
	s.pool.Close()
	s.admin.close()
}

func (s stdSessions) fence(opts *Options) (fence, error) {
	db, err := Std(s.pool, opts)
	if err != nil {
		return nil, err
	}
	return stdFence{db, rowQuerier{sqlrow.Std(s.pool), sqlkit.Std{On: s.pool}}, operator{sqladmin.Pgx(s.admin.pool)}, s.pool}, nil
}

// openers open pools of each driver.
var openers = []struct {
	driver string
	open   func(config *pgx.ConnConfig, conns int) (sessions, error)
}{
	{"pgx", func(config *pgx.ConnConfig, conns int) (sessions, error) { return openPgx(config, conns) }},
	{"std", func(config *pgx.ConnConfig, conns int) (sessions, error) {
		pool := stdlib.OpenDB(*config)
		pool.SetMaxOpenConns(conns)
		pool.SetMaxIdleConns(conns)
		admin, err := openPgx(config.Copy(), conns)
		return stdSessions{pool, admin}, err
	}},
}

func openPgx(config *pgx.ConnConfig, conns int) (pgxSessions, error) {
	c, err := pgxpool.ParseConfig("")
	if err != nil {
		return pgxSessions{}, err
	}
	c.ConnConfig, c.MaxConns = config, int32(conns)
	pool, err := pgxpool.NewWithConfig(context.Background(), c)
	return pgxSessions{pool}, err
}

// env is a database of the test's own with the schema, and one driver.
type env struct {
	testing.TB
	driver string
	url    string
	admin  *pgxpool.Pool // a superuser's, beside the DB under test
	db     fence
	pool   sessions // that of db, and of every DB with its own options alone
	opener func(config *pgx.ConnConfig, conns int) (sessions, error)
	// defaults are the options of DBs that are opened with none.
	defaults Options
}

const poolSize = 40

// newEnvOf is newEnv for a test of one driver.
func newEnvOf(t *testing.T, driver string) *env {
	t.Parallel()
	for i := range openers {
		if openers[i].driver == driver {
			return newEnv(t, i)
		}
	}
	t.Fatalf("no driver %q", driver)
	return nil
}

// eachDriver runs a test for both drivers, each on a database of its own,
// beside other tests.
func eachDriver(t *testing.T, test func(t *testing.T, e *env)) {
	t.Parallel()
	for i := range openers {
		t.Run(openers[i].driver, func(t *testing.T) { test(t, newEnv(t, i)) })
	}
}

// bothDrivers is eachDriver for tests that mostly wait, so at the same time. It
// must be the last thing that a test does.
func bothDrivers(t *testing.T, test func(t *testing.T, e *env)) {
	t.Parallel()
	for i := range openers {
		t.Run(openers[i].driver, func(t *testing.T) {
			t.Parallel()
			test(t, newEnv(t, i))
		})
	}
}

// someEnv is newEnvOf for a driver that is another one each time. It is for tests
// that are only about the database functions.
func someEnv(t *testing.T) *env {
	t.Parallel()
	i := rand.IntN(len(openers))
	t.Logf("with %s", openers[i].driver)
	return newEnv(t, i)
}

// someDriver runs a test on someEnv.
func someDriver(t *testing.T, test func(t *testing.T, e *env)) { test(t, someEnv(t)) }

// newEnv is a database of the test's own that is a copy of one with the schema.
func newEnv(t *testing.T, driver int) *env {
	t.Helper()
	return onDatabase(t, driver, pgtest.MigratedDatabase(t, "sqlfence", func(ctx context.Context, pool *pgxpool.Pool) error {
		return sqladmin.Pgx(pool).Migrate(ctx)
	}))
}

// newEnvAt is an empty database of a server of the test's own.
func newEnvAt(t testing.TB, driver int, url string) *env {
	t.Helper()
	e := onDatabase(t, driver, url)
	must(t, e.db.Migrate(t.Context()))
	return e
}

func onDatabase(t testing.TB, driver int, url string) *env {
	t.Helper()
	e := &env{TB: t, driver: openers[driver].driver, opener: openers[driver].open, url: url, defaults: patient}
	admin, err := pgxpool.New(context.Background(), url)
	must(t, err)
	e.admin = admin
	t.Cleanup(admin.Close)
	e.reconnect()
	return e
}

// reconnect gives e a DB with new sessions, which have the settings that are now
// the database's, or are those of a server that was started again.
func (e *env) reconnect() {
	e.Helper()
	e.pool = e.connect(poolSize)
	e.db = e.open(nil)
}

// connect opens a pool of the test's own.
func (e *env) connect(conns int, change ...func(*pgx.ConnConfig)) sessions {
	e.Helper()
	config, err := pgx.ParseConfig(e.url)
	must(e, err)
	for _, c := range change {
		c(config)
	}
	pool, err := e.opener(config, conns)
	must(e, err)
	e.Cleanup(func() {
		e.givenBack(pool) // closing would wait for them
		pool.close()
	})
	return pool
}

// givenBack waits until no connection of a pool is in use, which is what no path
// may leave behind.
func (e *env) givenBack(pool sessions) {
	e.Helper()
	testkit.Eventually(e, "the connections of a pool to be given back", func() bool { return pool.inUse() == 0 })
}

// open makes another DB, on the sessions of e's or, if they differ in anything,
// on its own.
func (e *env) open(opts *Options, change ...func(*pgx.ConnConfig)) fence {
	e.Helper()
	if len(change) == 0 {
		return e.on(e.pool, opts)
	}
	return e.on(e.connect(poolSize, change...), opts)
}

// on makes a DB on some sessions.
func (e *env) on(pool sessions, opts *Options) fence {
	e.Helper()
	if opts == nil {
		opts = &e.defaults
	}
	db, err := pool.fence(opts)
	must(e, err)
	return db
}

// single is a DB whose pool has one connection.
func (e *env) single() fence { e.Helper(); return e.on(e.connect(1), &Options{}) }

// closed is a DB whose pool is closed: whatever is sent to it is ErrUnavailable.
func (e *env) closed() fence {
	e.Helper()
	pool := e.connect(1)
	pool.close()
	return e.on(pool, nil)
}

// execModes are the exec modes of pgx, below database/sql in the short form the
// two that differ most.
func (e *env) execModes() []pgx.QueryExecMode {
	if e.driver == "std" && !longtest.Long {
		return []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeSimpleProtocol}
	}
	return []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe,
		pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol}
}

func itoa(n int) string { return strconv.Itoa(n) }
