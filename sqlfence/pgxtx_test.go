package sqlfence

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
)

// firsts are ways to send a transaction's first statement, each of which calls
// touch(): it leaves a trace that no rollback removes. They return what they read.
var firsts = map[string]func(ctx context.Context, tx pgx.Tx) (string, error){
	"Exec": func(ctx context.Context, tx pgx.Tx) (string, error) {
		tag, err := tx.Exec(ctx, "INSERT INTO written SELECT $1 FROM touch()", 5)
		return tag.String(), err
	},
	"Exec without arguments": func(ctx context.Context, tx pgx.Tx) (string, error) {
		tag, err := tx.Exec(ctx, "-- name: Write :exec\r\nINSERT INTO written SELECT 5 FROM touch();")
		return tag.String(), err
	},
	"Exec of several": func(ctx context.Context, tx pgx.Tx) (string, error) {
		tag, err := tx.Exec(ctx, "INSERT INTO written VALUES (5); DELETE FROM written WHERE touch() > 0")
		return tag.String(), err
	},
	"Exec of another kind": func(ctx context.Context, tx pgx.Tx) (string, error) {
		tag, err := tx.Exec(ctx, "CREATE TEMP TABLE t ON COMMIT DROP AS SELECT touch()")
		return tag.String(), err
	},
	"Exec in a mode of its own": func(ctx context.Context, tx pgx.Tx) (string, error) {
		tag, err := tx.Exec(ctx, "INSERT INTO written SELECT $1 FROM touch()", pgx.QueryExecModeSimpleProtocol, 5)
		return tag.String(), err
	},
	"Exec with names": func(ctx context.Context, tx pgx.Tx) (string, error) {
		tag, err := tx.Exec(ctx, "INSERT INTO written SELECT @token FROM touch()", pgx.NamedArgs{"token": 5})
		return tag.String(), err
	},
	"Exec that fails": func(ctx context.Context, tx pgx.Tx) (string, error) {
		_, err := tx.Exec(ctx, "INSERT INTO written SELECT 1 / (touch() - touch() + $1)", 1)
		return fmt.Sprint(err), nil
	},
	"Exec that fails, in a savepoint": func(ctx context.Context, tx pgx.Tx) (string, error) {
		_, err := tx.Exec(ctx, "SELECT touch()")
		return fmt.Sprint(err, pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { _, err := tx.Exec(ctx, "SELECT 1 / $1::int", 0); return err })), err
	},
	"Exec of an argument that cannot be encoded": func(ctx context.Context, tx pgx.Tx) (string, error) {
		_, err := tx.Exec(ctx, "INSERT INTO written VALUES ($1)", "five")
		_, again := tx.Exec(ctx, "INSERT INTO written SELECT $1 FROM touch()", 5)
		return fmt.Sprint(err != nil), again
	},
	"Exec with an ended context": func(ctx context.Context, tx pgx.Tx) (string, error) {
		over, cancel := context.WithCancel(ctx)
		cancel()
		_, err := tx.Exec(over, "SELECT touch(), $1::int", 1)
		_, again := tx.Exec(ctx, "INSERT INTO written SELECT $1 FROM touch()", 5)
		return fmt.Sprint(errors.Is(err, context.Canceled)), again
	},
	"Query": func(ctx context.Context, tx pgx.Tx) (string, error) {
		rows, err := tx.Query(ctx, "SELECT i, touch() > 0 AS touched FROM generate_series($1::int, 3) i", 1)
		if err != nil {
			return "", err
		}
		fields := rows.FieldDescriptions()
		var got []string
		for rows.Next() {
			values, err := rows.Values()
			if err != nil {
				return "", err
			}
			got = append(got, fmt.Sprint(values, len(rows.RawValues())))
		}
		return fmt.Sprint(got, fields[1].Name, rows.CommandTag()), rows.Err()
	},
	"Query read by half": func(ctx context.Context, tx pgx.Tx) (string, error) {
		rows, err := tx.Query(ctx, "SELECT i FROM generate_series(1, 3 + 0 * touch()) i")
		if err != nil {
			return "", err
		}
		next := rows.Next()
		rows.Close()
		_, err = tx.Exec(ctx, "INSERT INTO written VALUES ($1)", 5)
		return fmt.Sprint(next, rows.Err(), rows.CommandTag()), err
	},
	"Query that is not scanned": func(ctx context.Context, tx pgx.Tx) (string, error) {
		rows, err := tx.Query(ctx, "SELECT 'x' WHERE touch() > $1", 0)
		if err != nil {
			return "", err
		}
		rows.Next()
		scan := rows.Scan(new(int))
		_, err = tx.Exec(ctx, "INSERT INTO written VALUES ($1)", 5)
		return fmt.Sprint(scan != nil, rows.Err() != nil), err
	},
	"Query that collects": func(ctx context.Context, tx pgx.Tx) (string, error) {
		rows, err := tx.Query(ctx, "SELECT i AS a, touch() > 0 AS b FROM generate_series(1, 2) i")
		if err != nil {
			return "", err
		}
		got, err := pgx.CollectRows(rows, pgx.RowToStructByName[struct {
			A int
			B bool
		}])
		return fmt.Sprint(got), err
	},
	"Query that fails": func(ctx context.Context, tx pgx.Tx) (string, error) {
		rows, err := tx.Query(ctx, "SELECT i / (2 - i) FROM generate_series(1, 3 + 0 * touch()) i WHERE $1::int = 1", 1)
		if err == nil {
			for rows.Next() {
			}
			err = rows.Err()
		}
		return fmt.Sprint(err), nil
	},
	"Query that cannot be prepared": func(ctx context.Context, tx pgx.Tx) (string, error) {
		rows, err := tx.Query(ctx, "SELECT touch(), nobody FROM written")
		if err == nil {
			rows.Close()
			err = rows.Err()
		}
		return fmt.Sprint(err), nil
	},
	"Query, and another statement meanwhile": func(ctx context.Context, tx pgx.Tx) (string, error) {
		rows, err := tx.Query(ctx, "SELECT i FROM generate_series(1, 3 + 0 * touch()) i")
		if err != nil {
			return "", err
		}
		_, busy := tx.Exec(ctx, "INSERT INTO written VALUES ($1)", 5)
		rows.Close()
		return fmt.Sprint(busy), busy
	},
	"QueryRow": func(ctx context.Context, tx pgx.Tx) (string, error) {
		var n int
		err := tx.QueryRow(ctx, "INSERT INTO written SELECT $1 FROM touch() RETURNING token", 5).Scan(&n)
		if err != nil {
			return "", err
		}
		_, err = tx.Exec(ctx, "INSERT INTO written VALUES ($1)", n)
		return fmt.Sprint(n), err
	},
	"QueryRow of none": func(ctx context.Context, tx pgx.Tx) (string, error) {
		none := tx.QueryRow(ctx, "SELECT 1 WHERE touch() < $1", 0).Scan(new(int))
		_, err := tx.Exec(ctx, "INSERT INTO written VALUES ($1)", 5)
		return fmt.Sprint(none), err
	},
	"SendBatch": func(ctx context.Context, tx pgx.Tx) (string, error) {
		b, got := &pgx.Batch{}, 0
		b.Queue("INSERT INTO written SELECT $1 FROM touch()", 5)
		b.Queue("SELECT count(*) FROM written").QueryRow(func(row pgx.Row) error { return row.Scan(&got) })
		br := tx.SendBatch(ctx, b)
		tag, err := br.Exec()
		return fmt.Sprint(tag, br.Tx() == nil), errors.Join(err, br.Close())
	},
	"SendBatch of other kinds": func(ctx context.Context, tx pgx.Tx) (string, error) {
		b := &pgx.Batch{}
		b.Queue("CREATE TEMP TABLE t ON COMMIT DROP AS SELECT touch()")
		return "", tx.SendBatch(ctx, b).Close()
	},
	"SendBatch of none": func(ctx context.Context, tx pgx.Tx) (string, error) {
		_, err := tx.Exec(ctx, "SELECT touch()")
		return fmt.Sprint(tx.SendBatch(ctx, &pgx.Batch{}).Close()), err
	},
	"CopyFrom": func(ctx context.Context, tx pgx.Tx) (string, error) {
		n, err := tx.CopyFrom(ctx, pgx.Identifier{"touching"}, []string{"token"}, pgx.CopyFromRows([][]any{{5}}))
		return fmt.Sprint(n), err
	},
	"Prepare": func(ctx context.Context, tx pgx.Tx) (string, error) {
		if _, err := tx.Prepare(ctx, "select", "INSERT INTO written SELECT $1 FROM touch()"); err != nil {
			return "", err
		}
		defer tx.Conn().Deallocate(ctx, "select")
		tag, err := tx.Exec(ctx, "select", 5)
		return tag.String(), err
	},
	"Begin": func(ctx context.Context, tx pgx.Tx) (string, error) {
		return "", pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "INSERT INTO written SELECT $1 FROM touch()", 5)
			return err
		})
	},
	"LargeObjects": func(ctx context.Context, tx pgx.Tx) (string, error) {
		objects := tx.LargeObjects()
		oid, err := objects.Create(ctx, 0)
		if err != nil {
			return "", err
		}
		_, touched := tx.Exec(ctx, "SELECT touch()")
		return "", errors.Join(touched, objects.Unlink(ctx, oid))
	},
	"Conn": func(ctx context.Context, tx pgx.Tx) (string, error) {
		tag, err := tx.Conn().Exec(ctx, "INSERT INTO written SELECT $1 FROM touch()", 5)
		return tag.String(), err
	},
}

// createTouch makes the function touch, and a table whose trigger calls it.
func (e *env) createTouch() {
	e.Helper()
	e.createWritten()
	e.exec(`CREATE SEQUENCE touches; GRANT ALL ON SEQUENCE touches TO PUBLIC;
		CREATE FUNCTION touch() RETURNS bigint LANGUAGE sql VOLATILE AS $$ SELECT nextval('public.touches') $$;
		CREATE TABLE touching (token bigint);
		CREATE FUNCTION on_touching() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM public.touch(); RETURN NEW; END';
		CREATE TRIGGER touch BEFORE INSERT ON touching FOR EACH ROW EXECUTE FUNCTION on_touching()`)
}

// touched reports whether touch was called since the last time.
func (e *env) touched() bool {
	e.Helper()
	called := e.int("SELECT is_called::int FROM touches") == 1
	e.exec("ALTER SEQUENCE touches RESTART")
	return called
}

// TestFirstStatement: whatever a callback sends first, in every exec mode, with a
// tracer, with a pool of one connection, and if the mark has to be raised first, it
// does what it does in pgx's own transaction, which is the control.
func TestFirstStatement(t *testing.T) {
	e := newEnvOf(t, "pgx")
	e.createTouch()
	for _, mode := range e.execModes() {
		for setting, change := range map[string]func(*pgx.ConnConfig){
			"": func(c *pgx.ConnConfig) { c.DefaultQueryExecMode = mode }, ", traced": func(c *pgx.ConnConfig) {
				c.DefaultQueryExecMode, c.Tracer = mode, endTracer{"nothing that is sent", func() {}}
			},
		} {
			db, single := e.open(nil, change).(pgxFence), e.on(e.connect(1, change), nil).(pgxFence)
			for what, first := range firsts {
				var want, got string
				var wantErr error
				run := func(begin func(ctx context.Context, fn func(pgx.Tx) error) error, read *string) (rows int64, err error) {
					e.exec("DELETE FROM written")
					err = begin(t.Context(), func(tx pgx.Tx) (err error) { *read, err = first(t.Context(), tx); return err })
					return e.written(), err
				}
				rows, wantErr := run(func(ctx context.Context, fn func(pgx.Tx) error) error { return pgx.BeginFunc(ctx, db.pool, fn) }, &want)
				touched := e.touched()
				for way, db := range map[string]pgxFence{"the mark is raised": db, "the mark is there": db, "one connection": single, "one connection, again": single} {
					if way == "the mark is raised" {
						e.exec("DELETE FROM fencepost.marks")
					} else {
						must(t, db.Raise(t.Context(), claimOf("r", 5)))
					}
					n, err := run(func(ctx context.Context, fn func(pgx.Tx) error) error {
						return db.InTx(ctx, claimOf("r", 5), func(_ context.Context, tx pgx.Tx) error { return fn(tx) })
					}, &got)
					if got != want || (err == nil) != (wantErr == nil) || n != rows || e.touched() != touched {
						t.Errorf("%v%s, %s, %s: got %q and %d rows, %v, want %q and %d rows, %v", mode, setting, what, way, got, n, err, want, rows, wantErr)
					}
					wantMark(t, e.db, "r", 5)
				}
			}
		}
	}
}

// TestFirstStatementIsRefused (P1): of what a callback under a stale claim sends first
// the server executes nothing, in no way and mode; and InTx returns the refusal, whatever the
// callback makes of it. The control is the holder: TestFirstStatement.
func TestFirstStatementIsRefused(t *testing.T) {
	e := newEnvOf(t, "pgx")
	e.createTouch()
	must(t, e.db.Raise(t.Context(), claimOf("r", 6)))
	own := errors.New("the callback's own")
	for _, mode := range e.execModes() {
		db := e.open(nil, func(c *pgx.ConnConfig) { c.DefaultQueryExecMode = mode }).(pgxFence)
		for what, first := range firsts {
			for makes, of := range map[string]func(err error) error{
				"passes it on": func(err error) error { return err }, "hides it": func(error) error { return nil },
				"returns another": func(error) error { return own }, "wraps it": func(err error) error { return fmt.Errorf("wrapped: %w", err) },
			} {
				var seen error
				err := db.InTx(t.Context(), claimOf("r", 5), func(ctx context.Context, tx pgx.Tx) error {
					_, seen = first(ctx, tx)
					return of(seen)
				})
				var rejected *guard.RejectedError
				if !errors.As(err, &rejected) || rejected.Reason != guard.ReasonStale || rejected.Mark.Token != 6 || errors.Is(err, own) {
					t.Errorf("%v, %s, a callback that %s: got %v, want stale", mode, what, makes, err)
				}
				if makes == "wraps it" && errors.Is(seen, guard.ErrStale) && !strings.HasPrefix(err.Error(), "wrapped: ") {
					t.Errorf("%v, %s: got %v, want the callback's error unchanged", mode, what, err)
				}
				if e.touched() {
					t.Errorf("%v, %s: it was executed", mode, what)
				}
			}
		}
	}
	e.wantInt(0, "rows that were written", "SELECT count(*) FROM written")
}

// TestFirstStatementComesLate: what a callback does before it sends anything is not
// fenced, and what it sends first is compared with the mark of then.
func TestFirstStatementComesLate(t *testing.T) {
	e := newEnvOf(t, "pgx")
	e.createTouch()
	must(t, e.db.Raise(t.Context(), claimOf("r", 5)))
	err := e.db.fenced(t.Context(), claimOf("r", 5), func(ctx context.Context, tx testTx) error {
		must(t, e.db.Raise(context.Background(), claimOf("r", 6)))
		_, err := tx.exec(ctx, "SELECT touch(), $1::int", 1)
		return err
	})
	if wantReason(t, err, guard.ReasonStale, "the first statement after a takeover"); e.touched() {
		t.Error("it was executed")
	}
}

// TestFirstStatementOfAll (P2): as many callbacks as the pool has connections, whose
// claims are all above marks that stopped holders are at, end these by themselves, although
// each has a connection that none can spare. The control may end nobody.
func TestFirstStatementOfAll(t *testing.T) {
	e := newEnvOf(t, "pgx")
	e.createWritten()
	const all = 3
	run := func(opts Options) (errs [all]error) {
		db := e.on(e.connect(all), &opts)
		var wg sync.WaitGroup
		var begun sync.WaitGroup
		begun.Add(all)
		for i := range all {
			stopped := e.holding(claimOf("r"+itoa(i), 5))
			defer stopped()
			wg.Go(func() {
				errs[i] = db.fenced(t.Context(), claimOf("r"+itoa(i), 6), func(ctx context.Context, tx testTx) error {
					begun.Done()
					begun.Wait()
					_, err := tx.exec(ctx, "SELECT $1::int", i)
					return err
				})
			})
		}
		wg.Wait()
		return errs
	}
	for _, err := range run(Options{TerminateAfter: -1, RaiseTimeout: time.Second}) {
		wantReason(t, err, guard.ReasonUnavailable, "without terminating, the control")
	}
	e.exec("DELETE FROM fencepost.marks")
	for _, err := range run(Options{TerminateAfter: 300 * time.Millisecond, RaiseTimeout: patience}) {
		noError(t, err, "behind a stopped holder")
	}
}

// TestNothingToFence (P8): a callback that sent nothing before its context ended raises no
// mark afterwards. The control is one that had no such context.
func TestNothingToFence(t *testing.T) {
	bothDrivers(t, func(t *testing.T, e *env) {
		for _, ends := range []bool{true, false} {
			e.exec("DELETE FROM fencepost.marks")
			ctx, cancel := context.WithCancel(t.Context())
			err := e.db.fenced(ctx, claimOf("r", 5), func(context.Context, testTx) error {
				if ends {
					cancel()
				}
				return nil
			})
			raised := e.int("SELECT count(*) FROM fencepost.marks") == 1
			if (err != nil) != ends || raised != (!ends || e.driver == "std") { // database/sql has raised it by then
				t.Errorf("ended %t: got %v, raised %t", ends, err, raised)
			}
			cancel()
		}
	})
}

// TestEndingIsNoticed (P5): COMMIT looks for the marker after everything that can end
// the transaction and begin another: the callback's own SQL in any disguise, and whatever
// gave it the connection. The control looks never.
func TestEndingIsNoticed(t *testing.T) {
	e := newEnvOf(t, "pgx")
	e.createWritten()
	db := e.db.(pgxFence)
	must(t, db.Raise(t.Context(), claimOf("r", 5)))
	const end = "COMMIT AND CHAIN"
	named := 0
	exec := func(sql string) func(ctx context.Context, tx pgx.Tx) error {
		return func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, sql); return err }
	}
	for what, ending := range map[string]func(ctx context.Context, tx pgx.Tx) error{
		"alone": exec(end), "in a comment": exec("/* SELECT */ " + end), "after a line": exec("-- SELECT\r" + end + " /*\nSELECT */"), "after a statement": exec("SELECT 1; " + end),
		"after spaces": exec("\n\t " + end), "prepared in SQL": exec("PREPARE p AS SELECT 1; " + end + "; DEALLOCATE p"),
		"in a savepoint's handle": func(ctx context.Context, tx pgx.Tx) error {
			savepoint, err := tx.Begin(ctx)
			if err != nil {
				return err
			}
			return exec(end)(ctx, savepoint)
		},
		"by the simple protocol": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "SELECT $1::int; "+end, pgx.QueryExecModeSimpleProtocol, 1)
			return err
		},
		"Query": func(ctx context.Context, tx pgx.Tx) error {
			rows, err := tx.Query(ctx, end)
			if err == nil {
				rows.Close()
			}
			return err
		},
		"the connection": func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Conn().Exec(ctx, end); return err },
		"the rows' connection": func(ctx context.Context, tx pgx.Tx) error {
			rows, err := tx.Query(ctx, "SELECT 1")
			if err == nil {
				rows.Close()
				_, err = rows.Conn().Exec(ctx, end)
			}
			return err
		},
		"later rows' connection": func(ctx context.Context, tx pgx.Tx) error {
			_, first := tx.Exec(ctx, "SELECT 1")
			rows, err := tx.Query(ctx, "SELECT 1")
			if err == nil {
				rows.Close()
				_, err = rows.Conn().Exec(ctx, end)
			}
			return errors.Join(first, err)
		},
		"a batch": func(ctx context.Context, tx pgx.Tx) error {
			b := &pgx.Batch{}
			b.Queue("SELECT 1")
			b.Queue(end)
			return tx.SendBatch(ctx, b).Close()
		},
		"a batch's connection": func(ctx context.Context, tx pgx.Tx) error {
			b := &pgx.Batch{}
			var conn *pgx.Conn
			b.Queue("SELECT 1").Query(func(rows pgx.Rows) error { conn = rows.Conn(); return nil })
			err := tx.SendBatch(ctx, b).Close()
			if err == nil {
				_, err = conn.Exec(ctx, end)
			}
			return err
		},
		"a later batch's connection": func(ctx context.Context, tx pgx.Tx) error {
			_, first := tx.Exec(ctx, "SELECT 1")
			b := &pgx.Batch{}
			b.Queue("SELECT 1")
			br := tx.SendBatch(ctx, b)
			rows, err := br.Query()
			rows.Close()
			if closing := br.Close(); err == nil && closing == nil {
				_, err = rows.Conn().Exec(ctx, end)
			}
			return errors.Join(first, err)
		},
		"a prepared statement's name": func(ctx context.Context, tx pgx.Tx) error {
			named++
			name := fmt.Sprintf("SELECT prepared_%d", named)
			_, err := tx.Prepare(ctx, name, end)
			if err == nil {
				_, err = tx.Exec(ctx, name)
			}
			return err
		},
		"a row that scans itself": func(ctx context.Context, tx pgx.Tx) error {
			var row keepsConn
			err := tx.QueryRow(ctx, "SELECT 1").Scan(&row)
			if err == nil {
				_, err = row.conn.Exec(ctx, end)
			}
			return err
		},
		"rows that scan themselves": func(ctx context.Context, tx pgx.Tx) error {
			var row keepsConn
			rows, err := tx.Query(ctx, "SELECT 1")
			if err != nil || !rows.Next() {
				return errors.Join(err, rows.Err())
			}
			err = rows.Scan(&row)
			if rows.Close(); err == nil {
				_, err = row.conn.Exec(ctx, end)
			}
			return err
		},
		"a rewriter": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "SELECT 1", rewriter(end))
			return err
		},
	} {
		run := func(looks bool) error {
			return db.InTx(t.Context(), claimOf("r", 5), func(ctx context.Context, tx pgx.Tx) error {
				if err := ending(ctx, tx); err != nil {
					return err
				}
				tx.(*pgxHandle).conn.mayHaveEnded = looks && tx.(*pgxHandle).conn.mayHaveEnded
				return nil
			})
		}
		wantReason(t, run(true), guard.ReasonOutcomeUnknown, "%s", what)
		noError(t, run(false), "%s, without a look, the control", what)
	}
}

// keepsConn keeps the connection of the rows that it scans.
type keepsConn struct{ conn *pgx.Conn }

func (k *keepsConn) ScanRow(rows pgx.Rows) error { k.conn = rows.Conn(); return nil }

// rewriter replaces a statement by another.
type rewriter string

func (r rewriter) RewriteQuery(context.Context, *pgx.Conn, string, []any) (string, []any, error) {
	return string(r), nil, nil
}

// TestUsual: what is sent with BEGIN, and after which COMMIT does not look.
func TestUsual(t *testing.T) {
	for text, want := range map[string]bool{
		"SELECT 1": true, " \n\tinsert\ninto t values (1); ": true, "-- name: One :one\nSELECT 1": true, "--a\r\n--b\rWITH a AS (SELECT 1) SELECT 1": true,
		"MERGE INTO t": true, "UPDATE t SET a = 1": true, "DELETE FROM t": true,
		"": false, ";": false, "--": false, "-- SELECT": false, "SELECT 1; COMMIT": false, "SELECT ';'": false, "COMMIT": false, "/* */ SELECT 1": false,
		"-- a\rCOMMIT /*\nSELECT */": false, "SELECTS": false, "select": false, "update ;": false, "select_one": false, "COPY t FROM STDIN": false, "SET x = 1": false, "CALL p()": false,
		"PREPARE TRANSACTION 'x'": false, "EXPLAIN SELECT 1": false,
	} {
		if got := usual(text); got != want {
			t.Errorf("%q: %t, want %t", text, got, want)
		}
	}
}
