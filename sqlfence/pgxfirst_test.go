package sqlfence

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/sqlfence/sqlrow"
)

// TestFirstStatementIsSentAsItIs: pgx sends an Exec without arguments as it is, so that
// constants such as 'now' and the table's columns are looked at each time; so does InTx.
func TestFirstStatementIsSentAsItIs(t *testing.T) {
	e := newEnvOf(t, "pgx")
	e.exec("CREATE TABLE stamps (way text, at timestamptz); CREATE TABLE wide (c int)")
	db := e.on(e.connect(1), nil).(pgxFence)
	run := func(text string, args ...any) {
		must(t, db.InTx(t.Context(), claimOf("r", 5), func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, text, args...)
			return err
		}))
	}
	for i := range 3 {
		run("INSERT INTO stamps VALUES ('as it is', 'now')")
		run("INSERT INTO stamps VALUES ('no names', 'now')", pgx.NamedArgs{})
		run("INSERT INTO stamps VALUES ('prepared, the control' || left($1, 0), 'now')", "")
		run("SELECT * FROM wide FOR UPDATE")
		e.exec(fmt.Sprintf("SELECT pg_sleep(0.001); ALTER TABLE wide ADD COLUMN c%d int", i))
	}
	for way, want := range map[string]int{"as it is": 3, "no names": 3, "prepared, the control": 1} {
		e.wantInt(int64(want), "times by "+way, "SELECT count(DISTINCT at) FROM stamps WHERE way = $1", way)
	}
}

// TestFirstStatementWaitsInTheFence: whatever a first statement waits for, even to be
// prepared, it waits for under Options.LockTimeout, and only if its claim is not stale. What
// pgx has prepared on the connection before is the same.
func TestFirstStatementWaitsInTheFence(t *testing.T) {
	e := newEnvOf(t, "pgx")
	e.createWritten()
	must(t, e.db.Raise(t.Context(), claimOf("r", 5)))
	must(t, e.db.Raise(t.Context(), claimOf("s", 6)))
	for _, mode := range e.execModes() {
		for _, before := range []bool{false, true} {
			db := e.on(e.connect(1, func(c *pgx.ConnConfig) { c.DefaultQueryExecMode = mode }), &Options{LockTimeout: 50 * time.Millisecond})
			update := running("UPDATE written SET token = $1", 5)
			if before {
				must(t, db.fenced(t.Context(), claimOf("r", 5), update))
			}
			other := e.begin("LOCK TABLE written IN ACCESS EXCLUSIVE MODE")
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			wantState(t, db.fenced(ctx, claimOf("r", 5), update), "55P03", "%v, %t", mode, before)
			wantReason(t, db.fenced(ctx, claimOf("s", 5), update), guard.ReasonStale, "%v, %t: a stale one", mode, before)
			cancel()
			must(t, other.Rollback(t.Context()))
		}
	}
}

// TestFirstArguments: an argument that pgx cannot encode, or one too many, is an error of the
// statement alone, which the callback may survive as in pgx's own transaction: a stale claim
// is stale all the same, and a higher one is raised.
func TestFirstArguments(t *testing.T) {
	e := newEnvOf(t, "pgx")
	e.createWritten()
	must(t, e.db.Raise(t.Context(), claimOf("s", 6)))
	const insert = "INSERT INTO written SELECT $1::int4"
	for what, args := range map[string][]any{"too large": {int64(1) << 40}, "too many": {1, 2}, "panics": {panics{}}} {
		for _, mode := range e.execModes() {
			db := e.on(e.connect(1, func(c *pgx.ConnConfig) { c.DefaultQueryExecMode = mode }), nil).(pgxFence)
			work := func(ctx context.Context, tx pgx.Tx) error {
				err := func() (err error) {
					defer func() {
						if r := recover(); r != nil {
							err = fmt.Errorf("panic: %v", r)
						}
					}()
					_, err = tx.Exec(ctx, insert, args...)
					return err
				}()
				if err == nil {
					return errors.New("no error")
				}
				_, err = tx.Exec(ctx, insert, 5)
				return err
			}
			e.exec("DELETE FROM fencepost.marks WHERE resource LIKE 'new%'; DELETE FROM written")
			must(t, db.InTx(t.Context(), claimOf("r", 5), func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, insert, 5) // it is cached from now on
				return err
			}))
			for _, resource := range []string{"r", "new"} {
				e.exec("DELETE FROM written")
				plain := pgx.BeginFunc(t.Context(), db.pool, func(tx pgx.Tx) error { return work(t.Context(), tx) })
				want := e.written()
				e.exec("DELETE FROM written")
				fenced := db.InTx(t.Context(), claimOf(resource, 5), work)
				switch {
				case what == "panics" && errors.Is(fenced, errPanicked) && e.written() == 0: // pgx's batch is lost
				case (fenced == nil) != (plain == nil) || e.written() != want:
					t.Errorf("%s, %v, %s: got %v and %d rows, by pgx %v and %d", what, mode, resource, fenced, e.written(), plain, want)
				}
			}
			if err := db.InTx(t.Context(), claimOf("s", 5), work); guard.ReasonOf(err) != guard.ReasonStale && what != "panics" {
				t.Errorf("%s, %v: a stale claim got %v", what, mode, err)
			}
		}
	}
}

type panics struct{}

func (panics) Value() (driver.Value, error) { panic("an argument that panics") }

// TestRefusalStaysTheSame (P6): a refusal that a call of this package or of sqlrow gets,
// because it is the first in its transaction, names the claim that was refused.
func TestRefusalStaysTheSame(t *testing.T) {
	e := newEnvOf(t, "pgx")
	e.createPairs()
	db := e.db.(pgxFence)
	must(t, db.Raise(t.Context(), claimOf("r", 6)))
	table := e.table("pairs", []string{"a", "b"}, &TableOptions{Rule: guard.SameOrNewer})
	row := func(call func(ctx context.Context, q sqlrow.Executor) error) func(ctx context.Context, tx pgx.Tx) error {
		return func(ctx context.Context, tx pgx.Tx) error { return call(ctx, sqlrow.Pgx(tx)) }
	}
	calls := map[string]func(ctx context.Context, tx pgx.Tx) error{
		"Present": func(ctx context.Context, tx pgx.Tx) error { return db.Present(ctx, tx, claimOf("r", 5)) },
		"Enter":   func(ctx context.Context, tx pgx.Tx) error { return db.Enter(ctx, tx, claimOf("a", 5), claimOf("r", 5)) },
		"Update": row(func(ctx context.Context, q sqlrow.Executor) error {
			return table.Update(ctx, q, claimOf("row", 9), Key{1, "x"}, Set{"v": "new"})
		}),
		"Upsert": row(func(ctx context.Context, q sqlrow.Executor) error {
			return table.Upsert(ctx, q, claimOf("row", 9), Key{1, "x"}, Set{"v": "new"})
		}),
		"Raise": row(func(ctx context.Context, q sqlrow.Executor) error {
			return table.Raise(ctx, q, claimOf("row", 9), Key{1, "x"}, nil)
		}),
		"Conn": func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Conn().Exec(ctx, "SELECT 1"); return err },
		"LargeObjects": func(ctx context.Context, tx pgx.Tx) error {
			o := tx.LargeObjects()
			_, err := o.Create(ctx, 0)
			return err
		},
		"Rollback": func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) },
		"Commit":   func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) },
	}
	for what, call := range calls {
		err := db.InTxAll(t.Context(), []guard.Claim{claimOf("a", 5), claimOf("r", 5)}, nil, call)
		var rejected *guard.RejectedError
		if !errors.As(err, &rejected) || rejected.Claim != claimOf("r", 5) || rejected.Mark.Token != 6 {
			t.Errorf("%s: got %v, want stale for r", what, err)
		}
	}
	e.exec("ALTER FUNCTION fencepost.enter RENAME TO gone")
	for what, call := range calls {
		wantReason(t, db.InTxAll(t.Context(), []guard.Claim{claimOf("a", 5), claimOf("r", 5)}, nil, call), guard.ReasonSetup, "%s without the function", what)
	}
	for _, mode := range e.execModes() {
		modal, called := e.open(nil, func(c *pgx.ConnConfig) { c.DefaultQueryExecMode = mode }).(pgxFence), false
		wantReason(t, modal.InTx(t.Context(), claimOf("a", 5), func(ctx context.Context, tx pgx.Tx) error {
			b := &pgx.Batch{}
			b.Queue("SELECT 1").Query(func(pgx.Rows) error { called = true; return nil })
			return tx.SendBatch(ctx, b).Close()
		}), guard.ReasonSetup, "%v: a batch without the function", mode)
		if called {
			t.Errorf("%v: the batch's function was called", mode)
		}
	}
}

// TestFirstStatementIsCut (P5, P6): a context that ends while the first statement runs, or its
// rows are read, is an error of the statement, and what the callback makes of it is InTx's;
// if it makes nothing of it, nothing was committed, and that is known.
func TestFirstStatementIsCut(t *testing.T) {
	e := newEnvOf(t, "pgx")
	e.createWritten()
	e.exec("INSERT INTO written VALUES (1)")
	own := errors.New("the callback's own")
	for _, mode := range e.execModes() {
		db := e.on(e.connect(1, func(c *pgx.ConnConfig) { c.DefaultQueryExecMode = mode }), nil).(pgxFence)
		slow := func(ctx context.Context, tx pgx.Tx) error {
			short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			defer cancel()
			if _, err := tx.Exec(short, "UPDATE written SET token = $1", 5); errors.Is(err, context.DeadlineExceeded) {
				return own
			}
			return nil
		}
		for range 2 { // the second time it may go with BEGIN
			blocker := e.begin("SELECT FROM written FOR UPDATE")
			if err := db.InTx(t.Context(), claimOf("r", 5), slow); !errors.Is(err, own) {
				t.Errorf("%v: got %v, want the callback's own error", mode, err)
			}
			must(t, blocker.Rollback(t.Context()))
			must(t, db.InTx(t.Context(), claimOf("r", 5), func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "UPDATE written SET token = $1", 1)
				return err
			}))
			ctx, cancel := context.WithCancel(t.Context())
			wantReason(t, db.InTx(ctx, claimOf("r", 5), func(ctx context.Context, tx pgx.Tx) error {
				rows, err := tx.Query(ctx, "SELECT generate_series(1, 1000000)")
				for n := 0; err == nil && rows.Next(); n++ {
					if n == 3 {
						cancel()
					}
				}
				return err
			}), guard.ReasonUnavailable, "%v: rows that are not read to their end", mode)
		}
	}
}

// TestCommittedAndCut (P5): a callback that has committed is not told that nothing was
// committed because its session, or with it its context, ended before InTx could look. The
// control commits nothing.
func TestCommittedAndCut(t *testing.T) {
	e := newEnvOf(t, "pgx")
	e.createWritten()
	for _, end := range []string{"COMMIT AND CHAIN", "SAVEPOINT s", "COMMIT", "commit; BEGIN", "END; BEGIN", "Query", "Batch", "Commit"} {
		for _, cut := range []bool{false, true} {
			e.exec("DELETE FROM written")
			ctx, cancel := context.WithCancel(t.Context())
			err := e.on(e.connect(1), nil).(pgxFence).InTx(ctx, claimOf("r", 5), func(ctx context.Context, tx pgx.Tx) error {
				var pid int64
				err := tx.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&pid)
				if err == nil {
					_, err = tx.Exec(ctx, "INSERT INTO written VALUES ($1)", 5)
				}
				switch {
				case err != nil:
				case end == "Query":
					var rows pgx.Rows
					if rows, err = tx.Query(ctx, "COMMIT AND CHAIN"); err == nil {
						rows.Close()
					}
				case end == "Batch":
					b := &pgx.Batch{}
					b.Queue("SELECT 1")
					b.Queue("COMMIT AND CHAIN")
					err = tx.SendBatch(ctx, b).Close()
				case end == "Commit":
					err = tx.Commit(ctx)
				default:
					_, err = tx.Exec(ctx, end)
				}
				if err != nil {
					return err
				}
				e.terminate(pid)
				if cut {
					tx.Conn().Ping(ctx) // closes it
					cancel()
				}
				return nil
			})
			cancel()
			want := guard.ReasonOutcomeUnknown
			if end == "SAVEPOINT s" {
				want = guard.ReasonUnavailable
			}
			if wantReason(t, err, want, "%s, cut %t", end, cut); (e.written() == 1) != (want == guard.ReasonOutcomeUnknown) {
				t.Errorf("%s: %d rows", end, e.written())
			}
		}
	}
}

// endsAfter is a context that has ended after some looks at it.
type endsAfter struct {
	context.Context
	looks *int
}

func (c endsAfter) Err() error {
	if *c.looks--; *c.looks < 0 {
		return context.Canceled
	}
	return nil
}

// TestEndedBeforeItBegins (P6): a context that ends between the callback, which sent
// nothing, and the transaction's begin: nothing was sent, and the outcome is known.
func TestEndedBeforeItBegins(t *testing.T) {
	e := newEnvOf(t, "pgx")
	for _, resolve := range []bool{false, true} {
		committed := 0
		for at := range 6 {
			looks := 1000
			err := e.db.(pgxFence).InTxAll(endsAfter{t.Context(), &looks}, []guard.Claim{claimOf("r", 5)}, &TxOptions{Resolve: resolve},
				func(context.Context, pgx.Tx) error { looks = at; return nil })
			if err == nil {
				committed++
			} else if guard.ReasonOf(err) != guard.ReasonUnavailable {
				t.Errorf("after %d looks: got %v, want unavailable", at, err)
			}
		}
		if committed == 0 || committed == 6 {
			t.Errorf("%d of 6 were committed", committed)
		}
	}
}

// seenBy counts a statement that a tracer sees.
type seenBy struct{ n *int }

const traced = "SELECT 42 WHERE $1"

func (s seenBy) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	if d.SQL == traced {
		*s.n++
	}
	return ctx
}

func (seenBy) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TestTracedFirstStatement: a tracer sees the first statement as in pgx's own transaction, also
// if only the connections have it; and when the transaction begins does not depend on it.
func TestTracedFirstStatement(t *testing.T) {
	e := newEnvOf(t, "pgx")
	must(t, e.db.Raise(t.Context(), claimOf("r", 6)))
	config, err := pgxpool.ParseConfig(e.url)
	must(t, err)
	n := 0
	config.MaxConns = 1
	config.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error { c.Tracer = seenBy{&n}; return nil }
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	must(t, err)
	t.Cleanup(pool.Close)
	db, err := Pgx(pool, nil)
	must(t, err)
	for range 3 {
		must(t, db.InTx(t.Context(), claimOf("r", 6), func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, traced, true)
			return err
		}))
	}
	called := false
	wantReason(t, db.InTx(t.Context(), claimOf("r", 5), func(context.Context, pgx.Tx) error { called = true; return nil }), guard.ReasonStale, "a callback that sends nothing")
	if n != 3 || !called {
		t.Errorf("the tracer saw %d of 3, the stale callback was called: %t", n, called)
	}
}

// TestInTxBesideEnter: while a callback sends its first statement, another goroutine with its
// context enters another transaction. The race detector looks on.
func TestInTxBesideEnter(t *testing.T) {
	e := newEnvOf(t, "pgx")
	db := e.db.(pgxFence)
	must(t, db.Raise(t.Context(), claimOf("r", 5)))
	noError(t, db.InTx(t.Context(), claimOf("r", 5), func(ctx context.Context, tx pgx.Tx) error {
		other, err := db.pool.Begin(ctx)
		if err != nil {
			return err
		}
		defer other.Rollback(context.Background())
		var entering error
		var wg sync.WaitGroup
		wg.Go(func() {
			for range 20 {
				entering = errors.Join(entering, db.Enter(ctx, other, claimOf("x", 5)))
			}
		})
		_, err = tx.Exec(ctx, "SELECT $1::int", 1)
		wg.Wait()
		return errors.Join(err, entering)
	}))
}
