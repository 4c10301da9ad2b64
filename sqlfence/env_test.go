package sqlfence

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/migrate"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/internal/process"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/sqlfence/internal/scratch"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
	"github.com/fencepost-go/fencepost/sqlfence/sqlrow"
)

// patience ends waits that would never end. No promise depends on it.
const patience = testkit.Patience

// patient allows for a loaded machine. Tests of the timeouts set their own.
var patient = Options{LockTimeout: patience, IdleTimeout: patience, RaiseTimeout: 2 * patience, CommitTimeout: patience, TerminateAfter: endsNobody}

// endsNobody is a TerminateAfter that no test waits for.
const endsNobody = maxTimeout

// must ends the test if a call that the rest is built on failed.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// noError reports an error of a call that should succeed; what is a format and
// its arguments that say which call it was.
func noError(t testing.TB, err error, what ...any) {
	t.Helper()
	if err != nil {
		t.Errorf("%sgot %v, want no error", named(what), err)
	}
}

// wantReason reports an error that has another reason than want.
func wantReason(t testing.TB, err error, want guard.Reason, what ...any) {
	t.Helper()
	if got := guard.ReasonOf(err); got != want {
		t.Errorf("%sgot %v with reason %q, want %q", named(what), err, got, want)
	}
}

// wantSays is wantReason for an error whose text must have says in it.
func wantSays(t testing.TB, err error, want guard.Reason, says string, what ...any) {
	t.Helper()
	if wantReason(t, err, want, what...); err == nil || !strings.Contains(err.Error(), says) {
		t.Errorf("%sgot %v, which does not say %q", named(what), err, says)
	}
}

// wantState reports an error that has another SQLSTATE than want.
func wantState(t testing.TB, err error, want string, what ...any) {
	t.Helper()
	if got := pgerr.State(err); got != want {
		t.Errorf("%sgot %v with SQLSTATE %q, want %q", named(what), err, got, want)
	}
}

// wantRefused is wantReason and wantState.
func wantRefused(t testing.TB, err error, want guard.Reason, state string, what ...any) {
	t.Helper()
	wantReason(t, err, want, what...)
	wantState(t, err, state, what...)
}

// wantCause is wantReason for an error that must have a cause inside.
func wantCause(t testing.TB, err error, want guard.Reason, cause error, what ...any) {
	t.Helper()
	if wantReason(t, err, want, what...); !errors.Is(err, cause) {
		t.Errorf("%sgot %v, which has not %v inside", named(what), err, cause)
	}
}

// wantRejected is wantReason for a refusal of a claim under a mark with a token.
func wantRejected(t testing.TB, err error, want guard.Reason, claim guard.Claim, mark guard.Token, what ...any) {
	t.Helper()
	var rejected *guard.RejectedError
	if wantReason(t, err, want, what...); !errors.As(err, &rejected) || rejected.Reason != want || rejected.Claim != claim || rejected.Mark.Token != mark {
		t.Errorf("%sgot %v, want the refusal of %+v under token %d", named(what), err, claim, mark)
	}
}

// wantResolved reports an outcome that is resolved as another one, or not at all.
func wantResolved(t testing.TB, db fence, err error, want bool, what ...any) {
	t.Helper()
	if committed, err := db.Resolve(context.Background(), err); err != nil || committed != want {
		t.Errorf("%sresolved as %t, %v, want %t", named(what), committed, err, want)
	}
}

func named(what []any) string {
	if len(what) == 0 {
		return ""
	}
	return fmt.Sprintf(what[0].(string), what[1:]...) + ": "
}

// exec runs SQL as the administrator.
func (e *env) exec(sql string, args ...any) {
	e.Helper()
	if _, err := e.admin.Exec(context.Background(), sql, args...); err != nil {
		e.Fatalf("%s: %v", sql, err)
	}
}

// int and text read one value as the administrator.
func (e *env) int(sql string, args ...any) (n int64) {
	e.Helper()
	if err := e.admin.QueryRow(context.Background(), sql, args...).Scan(&n); err != nil {
		e.Fatalf("%s: %v", sql, err)
	}
	return n
}

func (e *env) text(sql string, args ...any) (s string) {
	e.Helper()
	if err := e.admin.QueryRow(context.Background(), sql, args...).Scan(&s); err != nil {
		e.Fatalf("%s: %v", sql, err)
	}
	return s
}

// wantInt and wantText report a value that the administrator reads and that is
// another one than want.
func (e *env) wantInt(want int64, what, sql string, args ...any) {
	e.Helper()
	if got := e.int(sql, args...); got != want {
		e.Errorf("%s: %d, want %d", what, got, want)
	}
}

func (e *env) wantText(want, what, sql string, args ...any) {
	e.Helper()
	if got := e.text(sql, args...); got != want {
		e.Errorf("%s: %q, want %q", what, got, want)
	}
}

// begin opens a transaction of the administrator's and runs SQL in it. It is rolled
// back at the test's end, if it has not ended before.
func (e *env) begin(sql string, args ...any) pgx.Tx {
	e.Helper()
	tx, err := e.admin.Begin(context.Background())
	must(e, err)
	e.Cleanup(func() { tx.Rollback(context.Background()) })
	_, err = tx.Exec(context.Background(), sql, args...)
	must(e, err)
	return tx
}

// running is the callback of a transaction that runs one statement.
func running(sql string, args ...any) func(ctx context.Context, tx testTx) error {
	return func(ctx context.Context, tx testTx) error {
		_, err := tx.exec(ctx, sql, args...)
		return err
	}
}

// step is a part of a transaction, or all of it.
type step = func(ctx context.Context, tx testTx) error

// inTurn takes steps up to the first that fails.
func inTurn(steps ...step) step {
	return func(ctx context.Context, tx testTx) error {
		for _, next := range steps {
			if err := next(ctx, tx); err != nil {
				return err
			}
		}
		return nil
	}
}

// presents and enters are the step that presents claims, or enters under them.
func presents(claims ...guard.Claim) step {
	return func(ctx context.Context, tx testTx) error { return tx.present(ctx, claims...) }
}

func enters(claims ...guard.Claim) step {
	return func(ctx context.Context, tx testTx) error { return tx.enter(ctx, claims...) }
}

// raises is the step that raises a mark in another transaction.
func (e *env) raises(claim guard.Claim) step {
	return func(ctx context.Context, _ testTx) error { return e.db.Raise(ctx, claim) }
}

// wantMark reports a resource whose mark has another token than want.
func wantMark(t testing.TB, db fence, resource string, want guard.Token) {
	t.Helper()
	if mark, err := db.Mark(context.Background(), resource); err != nil || mark.Token != want {
		t.Errorf("the mark of %s is %+v, %v, want token %d", resource, mark, err, want)
	}
}

// roleName is the name of a role that only this test has: roles belong to the
// whole server.
func (e *env) roleName(what string) string {
	e.Helper()
	return fmt.Sprintf("fencepost_%s_%d", what, e.int("SELECT oid::bigint FROM pg_database WHERE datname = current_database()"))
}

// newRole creates a role without rights, which the test's end drops.
func (e *env) newRole(what, attributes string) (role string) {
	e.Helper()
	role = e.roleName(what)
	e.exec("CREATE ROLE " + role + " " + attributes)
	e.Cleanup(func() { e.exec("DROP OWNED BY " + role + "; DROP ROLE " + role) })
	return role
}

// as opens a DB as a new role without rights.
func (e *env) as(what string) (role string, db fence) {
	e.Helper()
	role = e.newRole(what, "LOGIN PASSWORD 'secret'")
	return role, e.open(nil, func(c *pgx.ConnConfig) { c.User, c.Password = role, "secret" })
}

// waitFor waits until the administrator reads true.
func (e *env) waitFor(what, sql string, args ...any) {
	e.Helper()
	testkit.Eventually(e, what, func() (done bool) {
		if err := e.admin.QueryRow(context.Background(), sql, args...).Scan(&done); err != nil {
			e.Fatalf("%s: %v", sql, err)
		}
		return done
	})
}

// terminate ends a session and waits until it is gone; the function's own
// waiting begins with PostgreSQL 14.
func (e *env) terminate(pid int64) {
	e.Helper()
	e.exec("SELECT pg_terminate_backend($1::bigint::int)", pid)
	e.waitFor("the end of a session", "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1::bigint::int)", pid)
}

// endsSession is the step that ends its own session.
func (e *env) endsSession(ctx context.Context, tx testTx) error {
	pid, err := tx.int(ctx, "SELECT pg_backend_pid()")
	if err == nil {
		e.terminate(pid)
	}
	return err
}

// waitersSQL counts the sessions of this database that wait for an advisory
// lock.
const waitersSQL = `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
	AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`

func (e *env) waitForWaiters(n int) {
	e.Helper()
	e.waitFor(fmt.Sprint(n, " waiters"), "SELECT ("+waitersSQL+") >= $1", n)
}

// blockedSQL counts the sessions of this database that wait for a lock of any
// kind. Another test may run on the same server, and pg_locks shows a wait for
// a row without a database.
const blockedSQL = `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'
	AND state = 'active' AND cardinality(pg_blocking_pids(pid)) > 0`

func (e *env) waitForBlocked(n int) {
	e.Helper()
	e.waitFor(fmt.Sprint(n, " blocked"), "SELECT ("+blockedSQL+") >= $1", n)
}

// blockedPIDs are those sessions.
func (e *env) blockedPIDs() string {
	e.Helper()
	return e.text(strings.Replace(blockedSQL, "count(*)", "coalesce(array_agg(pid), '{}')::text", 1))
}

// start begins a call and returns once it has ended, waits for a lock, or has
// called paused. So a test controls the order of events, whatever the speed of
// the machine.
func (e *env) start(call func(paused func()) error) (ended chan error) {
	e.Helper()
	blocked := e.blockedPIDs()
	ended, paused := make(chan error, 1), make(chan struct{}, 1)
	go func() { ended <- call(func() { paused <- struct{}{} }) }()
	testkit.Eventually(e, "a call to end or to wait for a lock", func() bool {
		return len(ended) > 0 || len(paused) > 0 || e.int(blockedSQL+" AND pid <> ALL ($1::text::int[])", blocked) > 0
	})
	return ended
}

// mutate replaces text in a function of schema fencepost, to show that a test
// detects it, until undo is called. It fails if there is nothing to replace.
func (e *env) mutate(function, old, new string) (undo func()) {
	e.Helper()
	def := e.text("SELECT pg_get_functiondef(p.oid) FROM pg_proc p WHERE p.pronamespace = 'fencepost'::regnamespace AND p.proname = $1", function)
	if !strings.Contains(def, old) {
		e.Fatalf("function %s does not contain %q", function, old)
	}
	e.exec(strings.ReplaceAll(def, old, new))
	return func() { e.Helper(); e.exec(def) }
}

func (e *env) table(name string, key []string, opts *TableOptions) *Table {
	e.Helper()
	t, err := anyTable([]string{name}, key, opts)
	must(e, err)
	return t
}

// anyTable is sqlrow.NewTable without a template, for tests that do not concern the
// names of resources.
func anyTable(name, key []string, opts *TableOptions) (*Table, error) {
	o := TableOptions{}
	if opts != nil {
		o = *opts
	}
	o.InsecureAnyResource = true
	return sqlrow.NewTable(name, key, nil, &o)
}

func claimOf(resource string, token guard.Token) guard.Claim {
	return guard.Claim{Resource: resource, Token: token, LeaseID: "lease-" + token.String()}
}

// schema is what an Admin migrates to.
func schema() migrate.Component { return migrate.Load("sqlfence", os.DirFS("sqladmin/migrations")) }

// quoteText quotes a string constant.
func quoteText(s string) string {
	return "E'" + strings.NewReplacer("'", "''", `\`, `\\`).Replace(s) + "'"
}

// errRan is the error of ran, a callback that should not be called.
var errRan = errors.New("the callback ran")

func ran(context.Context, testTx) error { return errRan }

// never is ran as a check.
func never(t *testing.T) func(context.Context, testTx) error {
	return func(context.Context, testTx) error { t.Error(errRan); return errRan }
}

// serverSQL is what enter returns of the server, and transactionIDSQL with the ID.
const (
	serverSQL        = "concat_ws('/', " + timelineSQL + ", " + microsOf + "now()" + asMicros + ")"
	transactionIDSQL = "SELECT pg_current_xact_id()::text, " + serverSQL
)

// claimsSetting is the value of the setting fencepost.claims.
func claimsSetting(claims ...guard.Claim) string { return sqlkit.JSON(claims) }

// calls are calls that ask the database something, all or those of some names, under
// a claim and on a row of the table that createPairs makes.
func (e *env) calls(db fence, claim guard.Claim, names ...string) map[string]func(ctx context.Context) error {
	e.Helper()
	table, key := e.table("pairs", []string{"a", "b"}, &TableOptions{Rule: guard.SameOrNewer}), Key{1, "x"}
	all := map[string]func(ctx context.Context) error{
		"InTx": func(ctx context.Context) error {
			return db.fenced(ctx, claim, ran)
		},
		"Exec":          func(ctx context.Context) error { _, err := db.fencedExec(ctx, claim, "SELECT 1"); return err },
		"Raise":         func(ctx context.Context) error { return db.Raise(ctx, claim) },
		"Admit":         func(ctx context.Context) error { _, err := db.Admit(ctx, claim); return err },
		"Mark":          func(ctx context.Context) error { _, err := db.Mark(ctx, claim.Resource); return err },
		"Retire":        func(ctx context.Context) error { _, err := db.Retire(ctx, time2001); return err },
		"Marks":         func(ctx context.Context) error { _, err := collect(db.Marks(ctx, "")); return err },
		"Migrate":       db.Migrate,
		"Verify":        func(ctx context.Context) error { _, err := db.Verify(ctx, Verification{}); return err },
		"Triggers":      func(ctx context.Context) error { _, err := db.Triggers(ctx); return err },
		"RemoveTrigger": func(ctx context.Context) error { return db.RemoveTrigger(ctx, []string{"pairs"}) },
		"Update":        func(ctx context.Context) error { return table.Update(ctx, db, claim, key, Set{"v": "new"}) },
		"Upsert":        func(ctx context.Context) error { return table.Upsert(ctx, db, claim, key, Set{"v": "new"}) },
		"Table.Raise":   func(ctx context.Context) error { return table.Raise(ctx, db, claim, key, nil) },
	}
	if len(names) == 0 {
		return all
	}
	some := map[string]func(ctx context.Context) error{}
	for _, name := range names {
		if some[name] = all[name]; all[name] == nil {
			e.Fatalf("there is no call %q", name)
		}
	}
	return some
}

// childVariable names the program that a copy of the test binary runs instead
// of the tests; see [startChild].
const childVariable = "FENCEPOST_SQLFENCE_CHILD"

// children are the programs of the copies, by name.
var children = map[string]func() error{}

func TestMain(m *testing.M) {
	name := os.Getenv(childVariable)
	if name == "" {
		flag.Parse()
		if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
			f.Value.Set("8") // most of the time they wait
		}
		code := m.Run()
		scratch.Close()
		os.Exit(code)
	}
	program := children[name]
	if program == nil {
		fmt.Fprintf(os.Stderr, "no child program %q\n", name)
		os.Exit(2)
	}
	if err := program(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// startChild starts a copy of the test binary that runs one of [children].
func startChild(t testing.TB, name string, env ...string) *process.Worker {
	t.Helper()
	return process.Work(t, process.Self(append(env, childVariable+"="+name)...))
}

// Querier is where a test sends statements of a Table, and its own.
type Querier interface {
	sqlrow.Executor
	sqlkit.Querier
}

// rowQuerier is a Table's place and the same place for other statements.
type rowQuerier struct {
	sqlrow.Executor
	other sqlkit.Querier
}

func (q rowQuerier) Exec(ctx context.Context, sql string, args []any) (int64, error) {
	return q.other.Exec(ctx, sql, args)
}

func (q rowQuerier) Query(ctx context.Context, sql string, args []any, each sqlkit.EachRow) error {
	return q.other.Query(ctx, sql, args, each)
}

// altered sends what mutate makes of each statement to the administrator's
// sessions, one by one, and calls then after it.
func (e *env) altered(mutate func(sql string) string, then func()) Querier {
	e.Helper()
	tx := alteredTx{pool: e.admin, mutate: mutate, then: then}
	return rowQuerier{sqlrow.Pgx(tx), sqlkit.Pgx{On: tx}}
}

func same(sql string) string { return sql }

// alteredTx has of a transaction what a Table uses. It is none: its statements
// commit by themselves.
type alteredTx struct {
	pgx.Tx
	pool   *pgxpool.Pool
	mutate func(string) string
	then   func()
}

func (t alteredTx) Conn() *pgx.Conn { return nil }

func (t alteredTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	defer t.then()
	return t.pool.Exec(ctx, t.mutate(sql), args...)
}

func (t alteredTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	rows, err := t.pool.Query(ctx, t.mutate(sql), args...)
	if strings.HasPrefix(sql, "WITH RECURSIVE") { // the first look at a table
		return rows, err
	}
	return alteredRows{rows, t.then}, err
}

type alteredRows struct {
	pgx.Rows
	then func()
}

func (r alteredRows) Close() { r.Rows.Close(); r.then() }
