package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/longtest"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/sqlfence/sqlrow"
)

// TestEnterAfterRollback (P1): Enter in a callback of InTx returns nil only for
// the transaction that was fenced, not for one that the callback began on the
// same connection.
func TestEnterAfterRollback(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		claim := claimOf("r", 5)
		var control, entered error
		e.db.fenced(t.Context(), claim, func(ctx context.Context, tx testTx) error {
			control = tx.enter(ctx, claim)
			if _, err := tx.exec(ctx, "ROLLBACK; BEGIN"); err != nil {
				t.Fatal(err)
			}
			entered = tx.enter(ctx, claim)
			return nil
		})
		noError(t, control, "the control, the transaction of InTx")
		wantInvalid(t, "another transaction on the connection", entered, "Enter", `"r"`)
		e.db.fenced(t.Context(), claim, func(ctx context.Context, tx testTx) error {
			if _, err := tx.exec(ctx, "SELECT 1/0"); err == nil {
				t.Error("a division by zero")
			}
			entered = tx.enter(ctx, claim)
			return entered
		})
		wantRefused(t, entered, guard.ReasonUnavailable, "25P02", "in an aborted transaction")
	})
}

// TestTableInsideInTx: a statement of a Table on the DB itself inside its own
// InTx would run in another transaction, and wait forever for a connection of a
// pool of one: it is refused, and the error says what to do instead. The
// controls are the same statements on the transaction, and after it.
func TestTableInsideInTx(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.exec("CREATE TABLE n (id int PRIMARY KEY, v int, last_fencing_token bigint NOT NULL DEFAULT 0); INSERT INTO n VALUES (1, 0)")
		table := e.table("n", []string{"id"}, &TableOptions{Rule: guard.SameOrNewer})
		claim := claimOf("n:1", 5)
		calls := map[string]func(ctx context.Context, q Querier) error{
			"Update":      func(ctx context.Context, q Querier) error { return table.Update(ctx, q, claim, Key{1}, Set{"v": 1}) },
			"Upsert":      func(ctx context.Context, q Querier) error { return table.Upsert(ctx, q, claim, Key{1}, Set{"v": 1}) },
			"Table.Raise": func(ctx context.Context, q Querier) error { return table.Raise(ctx, q, claim, Key{1}, nil) },
		}
		var after context.Context
		noError(t, e.db.fenced(t.Context(), claim, func(ctx context.Context, tx testTx) error {
			after = ctx
			for what, call := range calls {
				err := call(ctx, e.db)
				wantInvalid(t, what, err, "Executor", "")
				if err != nil && !strings.Contains(err.Error(), "sqlrow.Pgx(tx)") {
					t.Errorf("%s: %v does not name the way out", what, err)
				}
			}
			return calls["Update"](ctx, tx.in())
		}), "on the transaction")
		noError(t, calls["Update"](after, e.db), "after the transaction")
	})
}

// TestTableKinds (P1): a relation that is not a table, or has rules, is refused
// at its first use, before anything is written: an INSTEAD OF trigger of a view
// let token 10 overwrite 11. The controls are the table itself and a
// partitioned one.
func TestTableKinds(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		const columns = "(id int PRIMARY KEY, v int, last_fencing_token bigint NOT NULL DEFAULT 0)"
		e.exec("CREATE TABLE base " + columns + "; INSERT INTO base VALUES (1, 0, 11); CREATE TABLE plain " + columns + "; INSERT INTO plain VALUES (1, 0)")
		e.exec("CREATE VIEW viewed AS SELECT id, v, last_fencing_token * 0 AS last_fencing_token FROM base")
		e.exec(`CREATE FUNCTION instead() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN UPDATE base SET v = NEW.v, last_fencing_token = NEW.last_fencing_token; RETURN NEW; END';
			CREATE TRIGGER instead INSTEAD OF UPDATE ON viewed FOR EACH ROW EXECUTE FUNCTION instead()`)
		e.exec("CREATE TABLE ruled " + columns + "; CREATE RULE other AS ON UPDATE TO ruled DO INSTEAD UPDATE base SET v = NEW.v; INSERT INTO ruled VALUES (1, 0)")
		e.exec("CREATE FOREIGN DATA WRAPPER nothing; CREATE SERVER nowhere FOREIGN DATA WRAPPER nothing; CREATE FOREIGN TABLE far (id int, v int, last_fencing_token bigint) SERVER nowhere")
		e.exec("CREATE TABLE parted " + columns + " PARTITION BY LIST (id); CREATE TABLE parted1 PARTITION OF parted FOR VALUES IN (1); INSERT INTO parted VALUES (1, 0)")
		e.exec("CREATE TABLE mixed (id int, v int, last_fencing_token bigint) PARTITION BY LIST (id); CREATE FOREIGN TABLE mixed1 PARTITION OF mixed FOR VALUES IN (1) SERVER nowhere")
		update := func(q Querier, name string) error {
			return e.table(name, []string{"id"}, nil).Update(t.Context(), q, claimOf("r", 10), Key{1}, Set{"v": 7})
		}
		for name, why := range map[string]string{"viewed": "view", "ruled": "rules", "far": "foreign", "mixed": "foreign"} {
			wantInvalid(t, name, update(e.db, name), "table", why)
			err := e.db.plain(t.Context(), func(_ context.Context, tx testTx) error { return update(tx.in(), name) })
			wantInvalid(t, name+" in a transaction", err, "table", why)
			if got := e.text("SELECT v || ' ' || last_fencing_token FROM base"); got != "0 11" {
				t.Fatalf("%s: the row is %s", name, got)
			}
		}
		for _, name := range []string{"plain", "parted"} {
			noError(t, update(e.db, name), "%s", name)
		}
		wantSays(t, update(e.db, "absent"), guard.ReasonInvalid, "absent", "no such table")
	})
}

// TestConnectionClosedInside (P5): a callback that closes its connection and
// returns nil has committed nothing, and gets an error.
func TestConnectionClosedInside(t *testing.T) {
	e := newEnvOf(t, "pgx")
	e.createWritten()
	wantReason(t, e.db.fenced(t.Context(), claimOf("r", 5), func(ctx context.Context, tx testTx) error {
		if err := write5(ctx, tx); err != nil {
			return err
		}
		return tx.(pgxTx).tx.Conn().Close(ctx)
	}), guard.ReasonUnavailable)
	e.wantInt(0, "rows were written", "SELECT count(*) FROM written")
}

// endTracer calls end after each statement that contains text.
type endTracer struct {
	text string
	end  func()
}

type tracedSQL struct{}

func (endTracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	return context.WithValue(ctx, tracedSQL{}, data.SQL)
}

func (t endTracer) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	if sql, _ := ctx.Value(tracedSQL{}).(string); strings.Contains(sql, t.text) {
		t.end()
	}
}

// TestEndedAfterEnter (P5): if the context ends as soon as a transaction has
// entered, the callback does not run. Only database/sql sees this: pgx begins in
// one round trip.
func TestEndedAfterEnter(t *testing.T) {
	e := newEnvOf(t, "std")
	must(t, e.db.Raise(t.Context(), claimOf("r", 5)))
	over := errors.New("over")
	ctx, cancel := context.WithCancelCause(t.Context())
	db := e.open(nil, func(c *pgx.ConnConfig) { c.Tracer = endTracer{"fencepost.enter", func() { cancel(over) }} })
	wantCause(t, db.fenced(ctx, claimOf("r", 5), never(t)), guard.ReasonUnavailable, over)
}

// TestResolveEnds (P5): a context that ends while the transaction is in progress
// leaves the outcome unknown, and the error has the cause.
func TestResolveEnds(t *testing.T) {
	e := newEnvOf(t, "pgx")
	tx, err := e.admin.Begin(t.Context())
	must(t, err)
	defer tx.Rollback(context.Background())
	var id transactionID
	must(t, tx.QueryRow(t.Context(), transactionIDSQL).Scan(&id.xid, &id.server))
	over := errors.New("over")
	ctx, cancel := context.WithCancelCause(t.Context())
	db := e.open(nil, func(c *pgx.ConnConfig) { c.Tracer = endTracer{"pg_xact_status", func() { cancel(over) }} })
	committed, err := db.Resolve(ctx, guard.OutcomeUnknown("commit", claimOf("r", 5), &lostCommit{id, errInjected}))
	if wantCause(t, err, guard.ReasonOutcomeUnknown, over); committed {
		t.Error("it is resolved as committed")
	}
}

// TestNoConnectionForAWrite (P5): a write that gets no connection is
// ErrUnavailable and is not tried again, even if there would be one by then. The
// control is the same write after it.
func TestNoConnectionForAWrite(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.exec("CREATE TABLE jobs (id int PRIMARY KEY, v text, last_fencing_token bigint NOT NULL DEFAULT 0); INSERT INTO jobs VALUES (1, 'old')")
		var dials atomic.Int32
		db := e.open(nil, func(c *pgx.ConnConfig) {
			dial := c.DialFunc
			c.Fallbacks = nil
			c.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
				if dials.Add(1) == 2 {
					return nil, errInjected
				}
				return dial(ctx, network, address)
			}
		})
		table := e.table("jobs", []string{"id"}, nil)
		write := func() error { return table.Update(t.Context(), db, claimOf("r", 5), Key{1}, Set{"v": "new"}) }
		must(t, table.Update(t.Context(), db, claimOf("r", 4), Key{1}, Set{"v": "old"}))     // looks at the table
		err := db.plain(t.Context(), func(context.Context, testTx) error { return write() }) // which has the first connection
		wantCause(t, err, guard.ReasonUnavailable, errInjected)
		e.wantText("old", "the row", "SELECT v FROM jobs")
		noError(t, write(), "the control")
		e.wantText("new", "the row of the control", "SELECT v FROM jobs")
	})
}

// TestEnterDuringAReset (P1): an Enter that waits for a reset is not fenced by the
// mark that it saw before: if the claim is above the new mark, the transaction is
// to begin again, and if it is below, it is stale.
func TestEnterDuringAReset(t *testing.T) {
	bothDrivers(t, func(t *testing.T, e *env) {
		for to, want := range map[int64]guard.Reason{4: guard.ReasonUnavailable, 6: guard.ReasonStale} {
			e.putMark("r", guard.Mark{Token: 5, LeaseID: "lease-5"})
			tx := e.begin("SELECT fencepost.reset('r', 5, 'lease-5', $1, '', 9, 'op', 'why', 1000)", to)
			ran := false
			entered := e.start(func(func()) error {
				return entering(e.db)(context.Background(), claimOf("r", 5), func(context.Context, testTx) error { ran = true; return nil })
			})
			must(t, tx.Commit(t.Context()))
			err := <-entered
			if guard.ReasonOf(err) != want || ran || want == guard.ReasonUnavailable && (pgerr.State(err) != pgerr.Serialization || !strings.Contains(err.Error(), "the mark was retired or reset in the meantime")) {
				t.Errorf("reset to %d: got %v, want %s", to, err, want)
			}
			wantMark(t, e.db, "r", guard.Token(to))
		}
	})
}

var _ pgx.QueryTracer = endTracer{}

// TestLeakedPgxHandles (P1): nothing that a callback of InTx got from its
// transaction writes once the transaction is over, on a connection that may be in
// a newer holder's transaction by then. The control is the connection itself.
func TestLeakedPgxHandles(t *testing.T) {
	e := newEnvOf(t, "pgx")
	e.createWritten()
	single := e.single().(pgxFence)
	var tx, savepoint pgx.Tx
	var objects, savepointsObjects pgx.LargeObjects
	var object, savepointsObject *pgx.LargeObject
	must(t, single.InTx(t.Context(), claimOf("r", 5), func(ctx context.Context, in pgx.Tx) (err error) {
		tx = in
		if savepoint, err = in.Begin(ctx); err != nil {
			return err
		}
		objects, savepointsObjects = tx.LargeObjects(), savepoint.LargeObjects()
		oid, err := objects.Create(ctx, 0)
		if err != nil {
			return err
		}
		if object, err = objects.Open(t.Context(), oid, pgx.LargeObjectModeWrite); err != nil {
			return err
		}
		savepointsObject, err = savepointsObjects.Open(t.Context(), oid, pgx.LargeObjectModeWrite)
		return err
	}))
	const write = "INSERT INTO written VALUES (5)"
	table := e.table("written", []string{"token"}, &TableOptions{TokenColumn: "mark"})
	uses := map[string]func(ctx context.Context) error{
		"Exec":                func(ctx context.Context) error { _, err := tx.Exec(ctx, write); return err },
		"Exec of a savepoint": func(ctx context.Context) error { _, err := savepoint.Exec(ctx, write); return err },
		"Query":               func(ctx context.Context) error { _, err := tx.Query(ctx, write); return err },
		"QueryRow":            func(ctx context.Context) error { return tx.QueryRow(ctx, write+" RETURNING 1").Scan(new(int)) },
		"Begin":               func(ctx context.Context) error { _, err := tx.Begin(ctx); return err },
		"Prepare":             func(ctx context.Context) error { _, err := tx.Prepare(ctx, "p", write); return err },
		"Commit":              func(ctx context.Context) error { return tx.Commit(ctx) },
		"Rollback":            func(ctx context.Context) error { return tx.Rollback(ctx) },
		"CopyFrom": func(ctx context.Context) error {
			_, err := tx.CopyFrom(ctx, pgx.Identifier{"written"}, []string{"token"}, pgx.CopyFromRows([][]any{{5}}))
			return err
		},
		"SendBatch": func(ctx context.Context) error {
			b := &pgx.Batch{}
			b.Queue(write)
			return tx.SendBatch(ctx, b).Close()
		},
		"LargeObjects":              func(ctx context.Context) error { _, err := objects.Create(ctx, 0); return err },
		"LargeObjects afterwards":   func(ctx context.Context) error { o := tx.LargeObjects(); _, err := o.Create(ctx, 0); return err },
		"LargeObjects of savepoint": func(ctx context.Context) error { _, err := savepointsObjects.Create(ctx, 0); return err },
		"LargeObject":               func(context.Context) error { _, err := object.Write([]byte("x")); return err },
		"LargeObject of savepoint":  func(context.Context) error { _, err := savepointsObject.Write([]byte("x")); return err },
		"Enter":                     func(ctx context.Context) error { return single.Enter(ctx, tx, claimOf("r", 6)) },
		"Present":                   func(ctx context.Context) error { return single.Present(ctx, tx, claimOf("r", 6)) },
		"Table": func(ctx context.Context) error {
			return table.Update(ctx, sqlrow.Pgx(tx), claimOf("r", 6), Key{5}, Set{"v": 5})
		},
	}
	for what, use := range uses {
		if err := use(t.Context()); !errors.Is(err, pgx.ErrTxClosed) {
			t.Errorf("%s after the transaction: %v, want pgx.ErrTxClosed", what, err)
		}
		noError(t, single.InTx(t.Context(), claimOf("r", 6), func(ctx context.Context, _ pgx.Tx) error {
			if err := use(ctx); !errors.Is(err, pgx.ErrTxClosed) {
				t.Errorf("%s in a newer holder's transaction: %v, want pgx.ErrTxClosed", what, err)
			}
			return nil
		}), "%s: the newer holder's transaction", what)
	}
	e.wantInt(0, "rows that were written", "SELECT count(*) FROM written")
	var conn *pgx.Conn
	must(t, single.InTx(t.Context(), claimOf("r", 6), func(_ context.Context, in pgx.Tx) error { conn = in.Conn(); return nil }))
	if _, err := conn.Exec(t.Context(), write); err != nil || e.written() != 1 {
		t.Errorf("the connection itself, the control: %v", err)
	}
}

// TestLeakedResults (P1, P5): a callback that returns with rows or a batch's
// results open has not let the driver see whether they worked: nothing is
// committed, and what is read afterwards is an error.
func TestLeakedResults(t *testing.T) {
	const write = "INSERT INTO written SELECT i FROM generate_series(1, 10000) i RETURNING token"
	t.Run("pgx", func(t *testing.T) {
		e := newEnvOf(t, "pgx")
		e.createWritten()
		var rows pgx.Rows
		var results pgx.BatchResults
		for what, leak := range map[string]struct {
			leave func(ctx context.Context, tx pgx.Tx) error
			use   func() error
		}{
			"rows": {func(ctx context.Context, tx pgx.Tx) (err error) { rows, err = tx.Query(ctx, write); return err },
				func() error {
					for rows.Next() {
					}
					return rows.Err()
				}},
			"results": {func(ctx context.Context, tx pgx.Tx) error {
				b := &pgx.Batch{}
				b.Queue(write)
				b.Queue(write)
				results = tx.SendBatch(ctx, b)
				return nil
			}, func() error { _, err := results.Exec(); return errors.Join(err, results.Close()) }},
		} {
			wantReason(t, e.db.(pgxFence).InTx(t.Context(), claimOf("r", 5), leak.leave), guard.ReasonInvalid, "%s", what)
			if err := leak.use(); err == nil {
				t.Errorf("%s can be read after the transaction", what)
			}
			e.waitFor("the transaction's end", "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND state <> 'idle')")
			e.wantInt(0, what+": rows that were written", "SELECT count(*) FROM written")
		}
	})
	t.Run("std", func(t *testing.T) {
		e := newEnvOf(t, "std")
		e.createWritten()
		var rows *sql.Rows
		var tx *sql.Tx
		var prepared *sql.Stmt
		err := e.db.(stdFence).InTx(t.Context(), claimOf("r", 5), func(ctx context.Context, in *sql.Tx) (err error) {
			if tx = in; err == nil {
				prepared, err = tx.PrepareContext(ctx, "INSERT INTO written VALUES (5)")
			}
			if err == nil {
				rows, err = tx.QueryContext(ctx, "SELECT generate_series(1, 10000)")
			}
			return err
		})
		if err == nil {
			for rows.Next() {
			}
			err = rows.Err()
		}
		if err == nil {
			t.Error("rows can be read after the transaction")
		}
		_, execErr := tx.Exec("INSERT INTO written VALUES (5)")
		_, preparedErr := prepared.Exec()
		if execErr == nil || preparedErr == nil || e.written() != 0 {
			t.Errorf("after the transaction: %v, %v, %d rows", execErr, preparedErr, e.written())
		}
	})
}

// TestLeakedRowsOfEndedContext: database/sql closes rows that a callback has left
// open when their context ends, while InTx looks at the connection. The race
// detector sees it if InTx does so without database/sql's lock.
func TestLeakedRowsOfEndedContext(t *testing.T) {
	e := newEnvOf(t, "std")
	for n := range longtest.ByLength(6, 40) {
		fail := errors.New("fn's own")
		err := e.db.(stdFence).InTx(t.Context(), claimOf("r", 5), func(ctx context.Context, tx *sql.Tx) error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			rows, err := tx.QueryContext(ctx, "SELECT generate_series(1, 100000)")
			if err != nil {
				return err
			}
			rows.Next()
			cancel()
			time.Sleep(time.Duration(n%5) * 200 * time.Microsecond)
			return fail
		})
		if !errors.Is(err, fail) {
			t.Errorf("got %v, want fn's own error", err)
		}
	}
}
