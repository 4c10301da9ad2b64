package sqlfence

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
)

// wrappedConnector is a database/sql driver around pgx's, as programs install
// for tracing: nothing of the connection below can be seen through it.
type wrappedConnector struct{ driver.Connector }

func (c wrappedConnector) Connect(ctx context.Context) (driver.Conn, error) {
	inner, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return wrappedConn{inner}, nil
}

type wrappedConn struct{ driver.Conn }

func (c wrappedConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	return c.Conn.(driver.ConnBeginTx).BeginTx(ctx, opts)
}

func (c wrappedConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	return c.Conn.(driver.ExecerContext).ExecContext(ctx, query, args)
}

func (c wrappedConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	return c.Conn.(driver.QueryerContext).QueryContext(ctx, query, args)
}

func (c wrappedConn) CheckNamedValue(v *driver.NamedValue) error {
	return c.Conn.(driver.NamedValueChecker).CheckNamedValue(v)
}

// openWrapped opens a DB on a driver that is wrapped.
func (e *env) openWrapped() stdFence {
	e.Helper()
	config, err := pgx.ParseConfig(e.url)
	must(e, err)
	pool := sql.OpenDB(wrappedConnector{stdlib.GetConnector(*config)})
	e.Cleanup(func() { pool.Close() })
	f, err := stdSessions{pool}.fence(&e.defaults)
	must(e, err)
	return f.(stdFence)
}

// unmarked removes the marker that shows that a transaction ended.
func unmarked(db fence) {
	switch db := db.(type) {
	case pgxFence:
		db.marker = ""
	case stdFence:
		db.marker = ""
	}
}

// TestInTxEndedInSQL (P1, P5): a callback that ends the transaction in SQL, and
// perhaps begins another, gets ErrOutcomeUnknown on every driver, including a
// wrapped one, and what it wrote in an unfenced transaction is not committed.
// The control is the same without the marker: it returns nil.
func TestInTxEndedInSQL(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.createWritten()
		opens := map[string]func() fence{"plain": func() fence { return e.open(nil) }}
		if e.driver == "std" {
			opens["wrapped"] = func() fence { return e.openWrapped() }
		}
		for kind, open := range opens {
			db, control := open(), open()
			unmarked(control)
			for end, rows := range map[string]int64{ // committed before the transaction's end
				"COMMIT": 1, "ROLLBACK": 0, "COMMIT AND CHAIN": 1, "ROLLBACK AND CHAIN": 0, "COMMIT; BEGIN": 1, "ROLLBACK; BEGIN": 0,
				"COMMIT; BEGIN; SET LOCAL fencepost.transaction = ''": 1,
			} {
				run := func(db fence) error {
					e.exec("DELETE FROM written")
					return db.fenced(t.Context(), claimOf("r", 5), func(ctx context.Context, tx testTx) error {
						if err := write5(ctx, tx); err != nil {
							return err
						}
						if _, err := tx.exec(ctx, end); err != nil {
							t.Fatal(err)
						}
						if strings.Contains(end, "BEGIN") || strings.Contains(end, "CHAIN") {
							return write5(ctx, tx) // not fenced
						}
						return nil
					})
				}
				if err := run(db); guard.ReasonOf(err) != guard.ReasonOutcomeUnknown || !strings.Contains(err.Error(), "ended the transaction itself") {
					t.Errorf("%s, %s: got %v, want ErrOutcomeUnknown", kind, end, err)
				}
				if n := e.written(); n != rows {
					t.Errorf("%s, %s: %d rows, want %d", kind, end, n, rows)
				}
				e.waitFor("no transaction to be left open", "SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'")
				seen := end == "COMMIT" || end == "ROLLBACK"
				if err := run(control); (kind == "wrapped" || !seen) && err != nil {
					t.Errorf("%s, %s: the control noticed without a marker: %v", kind, end, err)
				}
			}
		}
	})
}

// TestInTxWritesAfterItsCommit (P1): once a callback has ended the transaction in
// SQL, its pgx.Tx sends nothing more, in whatever way: each would commit by itself,
// although a newer holder has taken over. The control is the connection below it.
func TestInTxWritesAfterItsCommit(t *testing.T) {
	e := newEnvOf(t, "pgx")
	e.createWritten()
	db := e.db.(pgxFence)
	const insert = "INSERT INTO written VALUES (5)"
	err := db.InTx(t.Context(), claimOf("r", 5), func(ctx context.Context, tx pgx.Tx) error {
		savepoint, err := tx.Begin(ctx)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "COMMIT"); err != nil {
			return err
		}
		noError(t, db.Raise(context.WithoutCancel(t.Context()), claimOf("r", 6)))
		for what, write := range map[string]func() error{
			"Exec":      func() error { _, err := tx.Exec(ctx, insert); return err },
			"Query":     func() error { rows, err := tx.Query(ctx, insert+" RETURNING token"); rows.Close(); return err },
			"QueryRow":  func() error { var n int; return tx.QueryRow(ctx, insert+" RETURNING token").Scan(&n) },
			"SendBatch": func() error { b := &pgx.Batch{}; b.Queue(insert); return tx.SendBatch(ctx, b).Close() },
			"CopyFrom": func() error {
				_, err := tx.CopyFrom(ctx, pgx.Identifier{"written"}, []string{"token"}, pgx.CopyFromRows([][]any{{5}}))
				return err
			},
			"Begin":     func() error { _, err := tx.Begin(ctx); return err },
			"savepoint": func() error { _, err := savepoint.Exec(ctx, insert); return err },
		} {
			if err := write(); !errors.Is(err, pgx.ErrTxClosed) {
				t.Errorf("%s: %v, want ErrTxClosed", what, err)
			}
		}
		if n := e.written(); n != 0 {
			t.Errorf("%d rows were written without a fence", n)
		}
		_, err = tx.Conn().Exec(ctx, insert)
		return err
	})
	if guard.ReasonOf(err) != guard.ReasonOutcomeUnknown || e.written() != 1 {
		t.Errorf("got %v, want ErrOutcomeUnknown; the control wrote %d rows", err, e.written())
	}
}

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
		if control != nil {
			t.Errorf("the control, the transaction of InTx: %v", control)
		}
		wantInvalid(t, "another transaction on the connection", entered, "Enter", `"r"`)
		e.db.fenced(t.Context(), claim, func(ctx context.Context, tx testTx) error {
			if _, err := tx.exec(ctx, "SELECT 1/0"); err == nil {
				t.Error("a division by zero")
			}
			entered = tx.enter(ctx, claim)
			return entered
		})
		if guard.ReasonOf(entered) != guard.ReasonUnavailable || pgerr.State(entered) != "25P02" {
			t.Errorf("in an aborted transaction: got %v, want ErrUnavailable", entered)
		}
	})
}

// TestTableInsideInTx: a statement of a Table on the DB itself inside its own
// InTx would run in another transaction, and wait forever for a connection of a
// pool of one: it is refused, and the error says what to do instead. The
// controls are the same statements on the transaction, and after it.
func TestTableInsideInTx(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.exec("CREATE TABLE n (id int PRIMARY KEY, v int, deleted_at timestamptz, last_fencing_token bigint NOT NULL DEFAULT 0); INSERT INTO n VALUES (1, 0)")
		table := e.table("n", []string{"id"}, &TableOptions{Rule: guard.SameOrNewer, DeletedColumn: "deleted_at"})
		claim := claimOf("n:1", 5)
		calls := map[string]func(ctx context.Context, q Querier) error{
			"Update":   func(ctx context.Context, q Querier) error { return table.Update(ctx, q, claim, Key{1}, Set{"v": 1}) },
			"Upsert":   func(ctx context.Context, q Querier) error { return table.Upsert(ctx, q, claim, Key{1}, Set{"v": 1}) },
			"Takeover": func(ctx context.Context, q Querier) error { return table.Raise(ctx, q, claim, Key{1}, nil) },
		}
		calls["Delete"] = func(ctx context.Context, q Querier) error { return table.Delete(ctx, q, claim, Key{1}, nil) }
		var after context.Context
		noError(t, e.db.fenced(t.Context(), claim, func(ctx context.Context, tx testTx) error {
			after = ctx
			for what, call := range calls {
				err := call(ctx, e.db)
				wantInvalid(t, what, err, "Querier", "")
				if err != nil && !strings.Contains(err.Error(), "DB.In(tx)") {
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
		if err := update(e.db, "absent"); guard.ReasonOf(err) != guard.ReasonInvalid || !strings.Contains(err.Error(), "absent") {
			t.Errorf("no such table: %v", err)
		}
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
