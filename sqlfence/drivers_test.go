package sqlfence

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
)

// The table of what the drivers promise: each case runs on pgx in each exec mode, on
// database/sql, and on a driver that hides pgx's connection, as tracing installs.

// opened makes a DB of one way, with a pool of some connections.
type opened func(conns int, opts *Options, change ...func(*pgx.ConnConfig)) fence

// eachWay runs a case in every way, on one database.
func eachWay(t *testing.T, test func(t *testing.T, e *env, open opened)) {
	t.Parallel()
	e := newEnv(t, 0)
	e.createWritten()
	onEachWay(t, e, test)
}

func onEachWay(t *testing.T, e *env, test func(t *testing.T, e *env, open opened)) {
	ways := map[string]opened{
		"database/sql": func(conns int, opts *Options, change ...func(*pgx.ConnConfig)) fence {
			std := &env{TB: e.TB, driver: "std", url: e.url, admin: e.admin, opener: openers[1].open, defaults: e.defaults}
			return std.on(std.connect(conns, change...), opts)
		},
		"wrapped": func(conns int, opts *Options, change ...func(*pgx.ConnConfig)) fence {
			return e.openWrapped(conns, opts, change...)
		},
	}
	for _, mode := range e.execModes() {
		ways["pgx, "+mode.String()] = func(conns int, opts *Options, change ...func(*pgx.ConnConfig)) fence {
			change = append(change, func(c *pgx.ConnConfig) { c.DefaultQueryExecMode = mode })
			return e.on(e.connect(conns, change...), opts)
		}
	}
	for way, open := range ways {
		t.Run(way, func(t *testing.T) {
			e.exec("TRUNCATE written, fencepost.marks")
			each := *e
			each.TB = t
			test(t, &each, open)
		})
	}
}

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
func (e *env) openWrapped(conns int, opts *Options, change ...func(*pgx.ConnConfig)) stdFence {
	e.Helper()
	config, err := pgx.ParseConfig(e.url)
	must(e, err)
	for _, c := range change {
		c(config)
	}
	pool := sql.OpenDB(wrappedConnector{stdlib.GetConnector(*config)})
	pool.SetMaxOpenConns(conns)
	pool.SetMaxIdleConns(conns)
	e.Cleanup(func() { pool.Close() })
	if opts == nil {
		opts = &e.defaults
	}
	f, err := stdSessions{pool: pool, admin: pgxSessions{e.admin}}.fence(opts)
	must(e, err)
	return f.(stdFence)
}

// TestDriversEncoding (P1, P9): a session in which a resource's name becomes another one, and
// so is compared with another mark, is refused by whatever compares. The controls are the same
// call in a session of UTF-8, which is stale, and one that nothing checks.
func TestDriversEncoding(t *testing.T) {
	eachWay(t, func(t *testing.T, e *env, open opened) {
		stale := guard.Claim{Resource: "café", Token: 5}
		must(t, e.db.Raise(t.Context(), guard.Claim{Resource: "café", Token: 6}))
		latin := open(2, nil, func(c *pgx.ConnConfig) { c.RuntimeParams["client_encoding"] = "LATIN1" })
		for what, db := range map[string]fence{"LATIN1": latin, "UTF8": open(2, nil)} {
			want := guard.ReasonStale
			if what == "LATIN1" {
				want = guard.ReasonInvalid
			}
			_, admitted := db.Admit(t.Context(), stale)
			_, executed := db.fencedExec(t.Context(), stale, "INSERT INTO written VALUES (5)")
			for call, err := range map[string]error{
				"InTx": db.fenced(t.Context(), stale, ran), "Raise": db.Raise(t.Context(), stale), "Admit": admitted, "Exec": executed,
				"Enter": db.plain(t.Context(), enters(stale)),
			} {
				wantReason(t, err, want, "%s in a session of %s", call, what)
			}
		}
		_, err := latin.Mark(t.Context(), "café")
		wantReason(t, err, guard.ReasonInvalid, "Mark")
		wantReason(t, latin.plain(t.Context(), presents(stale)), guard.ReasonInvalid, "Present")
		e.wantInt(0, "rows", "SELECT count(*) FROM written")
		e.wantInt(1, "marks", "SELECT count(*) FROM fencepost.marks")
		if strings.Contains(t.Name(), "simple_protocol") {
			return // in which pgx refuses it
		}
		must(t, latin.unfenced(t.Context(), "SELECT fencepost.raise($1, 5, 'lease-5', 1000)", "café"))
		e.wantInt(2, "marks, of which one has another name", "SELECT count(*) FROM fencepost.marks")
	})
}

// TestDriversOpenTransaction (P1): a transaction that somebody left open on a pooled
// connection, and that has written, is not taken for InTx's own: BEGIN in it is no error.
func TestDriversOpenTransaction(t *testing.T) {
	eachWay(t, func(t *testing.T, e *env, open opened) {
		db := open(1, nil)
		must(t, e.db.Raise(t.Context(), claimOf("r", 5)))
		must(t, db.unfenced(t.Context(), "BEGIN; INSERT INTO written VALUES (1)"))
		err := db.fenced(t.Context(), claimOf("r", 5), func(context.Context, testTx) error { return nil })
		if guard.ReasonOf(err) != guard.ReasonInvalid && err != nil { // pgx's pools close such a connection
			t.Error(err)
		}
		must(t, db.fenced(t.Context(), claimOf("r", 5), write5))
		e.wantText("5", "the rows", "SELECT string_agg(token::text, ' ') FROM written")
	})
}

// ending is how a callback ends the transaction itself.
type ending struct {
	by   string
	rows int64 // that its first write leaves
	end  func(ctx context.Context, e *env, tx testTx) error
}

func endings() (all []ending) {
	for text, rows := range map[string]int64{
		"COMMIT": 1, "ROLLBACK": 0, "COMMIT AND CHAIN": 1, "ROLLBACK AND CHAIN": 0, "COMMIT; BEGIN": 1, "ROLLBACK; BEGIN": 0, "END; BEGIN": 1,
		"/* SELECT */ commit and chain": 1, "COMMIT; BEGIN; SET LOCAL fencepost.transaction = '7'": 1,
	} {
		all = append(all, ending{text, rows, func(ctx context.Context, _ *env, tx testTx) error { _, err := tx.exec(ctx, text); return err }})
	}
	return append(all, ending{"the connection's COMMIT", 1, func(ctx context.Context, e *env, tx testTx) error {
		if own, is := tx.(pgxTx); is {
			_, err := own.tx.Conn().Exec(ctx, "COMMIT")
			return err
		}
		_, err := tx.exec(ctx, "COMMIT")
		return err
	}}, ending{"an open query", 1, func(ctx context.Context, e *env, tx testTx) error {
		switch own := tx.(type) {
		case pgxTx:
			_, err := own.tx.Query(ctx, "COMMIT AND CHAIN")
			testkit.Eventually(e, "the row", func() bool { return e.written() == 1 })
			return err
		case stdTx:
			_, err := own.tx.QueryContext(ctx, "COMMIT AND CHAIN")
			return err
		}
		return nil
	}})
}

// TestDriversCallbackEnds (P1, P5): a callback that commits by itself is never told that nothing
// was committed, nor that all is well, whatever happens afterwards: it is asked of the server.
// One that rolls back by itself gets no success.
func TestDriversCallbackEnds(t *testing.T) {
	own := errors.New("the callback's own")
	eachWay(t, func(t *testing.T, e *env, open opened) {
		db := open(4, nil)
		for _, how := range endings() {
			for then, after := range map[string]func(ctx context.Context, tx testTx, pid int64, cancel func()) error{
				"nothing":        func(context.Context, testTx, int64, func()) error { return nil },
				"its error":      func(context.Context, testTx, int64, func()) error { return own },
				"a failure":      func(ctx context.Context, tx testTx, _ int64, _ func()) error { tx.exec(ctx, "SELECT 1/0"); return nil },
				"a cancellation": func(_ context.Context, _ testTx, _ int64, cancel func()) error { cancel(); return nil },
				"its session ends": func(_ context.Context, _ testTx, pid int64, _ func()) error {
					e.terminate(pid)
					return nil
				},
				"its session ends, which it sees": func(ctx context.Context, tx testTx, pid int64, _ func()) error {
					e.terminate(pid)
					_, err := tx.exec(ctx, "SELECT 1")
					return err
				},
				"its session ends, and its context": func(ctx context.Context, tx testTx, pid int64, cancel func()) error {
					e.terminate(pid)
					tx.exec(ctx, "SELECT 1")
					cancel()
					return nil
				},
			} {
				e.exec("DELETE FROM written")
				ctx, cancel := context.WithCancel(t.Context())
				err := db.fenced(ctx, claimOf("r", 5), func(ctx context.Context, tx testTx) error {
					pid, err := tx.int(ctx, "SELECT pg_backend_pid()")
					if err == nil {
						err = write5(ctx, tx)
					}
					if err == nil {
						err = how.end(ctx, e, tx)
					}
					if err != nil {
						return err
					}
					return after(ctx, tx, pid, cancel)
				})
				cancel()
				what := how.by + ", then " + then
				e.wantInt(how.rows, what+": rows", "SELECT count(*) FROM written")
				if err == nil || how.rows == 1 && guard.ReasonOf(err) != guard.ReasonOutcomeUnknown {
					t.Errorf("%s: got %v, with %d rows", what, err, how.rows)
					continue
				}
				if guard.ReasonOf(err) == guard.ReasonOutcomeUnknown {
					wantResolved(t, db, err, how.rows == 1, "%s", what)
				}
				e.waitFor("no transaction to be left open", "SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'")
			}
		}
	})
}

// TestDriversHandleEnds: a callback that ends its transaction by its handle gets no success.
// pgx's handle does nothing then.
func TestDriversHandleEnds(t *testing.T) {
	eachWay(t, func(t *testing.T, e *env, open opened) {
		db := open(2, nil)
		for _, commit := range []bool{true, false} {
			for _, hides := range []bool{true, false} {
				e.exec("DELETE FROM written")
				err := db.fenced(t.Context(), claimOf("r", 5), func(ctx context.Context, tx testTx) error {
					if err := write5(ctx, tx); err != nil {
						return err
					}
					if err := tx.end(commit); !hides {
						return err
					}
					return nil
				})
				want, rows := guard.ReasonInvalid, int64(0)
				if _, std := db.(stdFence); std {
					want = guard.ReasonOutcomeUnknown
					if commit {
						rows = 1
					}
				}
				if wantReason(t, err, want, "commit %t, hides it %t", commit, hides); e.written() != rows {
					t.Errorf("commit %t: %d rows, want %d", commit, e.written(), rows)
				}
			}
		}
	})
}

// TestDriversEndedSession (P4, P5, P6): a holder whose session was ended learns what that means,
// whatever it makes of its errors: stale or a conflict if the mark is another's by now, else
// unavailable. Its own error, also one that looks like a lost connection, is passed on if the
// session lives; and what it did elsewhere stays unknown, whatever became of its transaction.
func TestDriversEndedSession(t *testing.T) {
	own := errors.New("the callback's own")
	elsewhere := guard.OutcomeUnknown("another system's write", claimOf("other", 1), io.ErrUnexpectedEOF)
	eachWay(t, func(t *testing.T, e *env, open opened) {
		db := open(4, nil)
		for want, meanwhile := range map[guard.Reason]func(){
			guard.ReasonUnavailable: func() {},
			guard.ReasonStale:       func() { must(t, e.db.Raise(context.Background(), claimOf("r", 6))) },
			guard.ReasonConflict:    func() { e.exec("UPDATE fencepost.marks SET lease_id = 'other' WHERE resource = 'r'") },
		} {
			for at, fn := range map[string]func(ctx context.Context, tx testTx) error{
				"at COMMIT":                    func(context.Context, testTx) error { return nil },
				"at a statement":               write5,
				"at a statement that hides it": func(ctx context.Context, tx testTx) error { write5(ctx, tx); return nil },
				"at a statement, wrapped": func(ctx context.Context, tx testTx) error {
					return fmt.Errorf("the work: %w", write5(ctx, tx))
				},
				"with its own error":                        func(context.Context, testTx) error { return own },
				"at a statement, and returns its own error": func(ctx context.Context, tx testTx) error { write5(ctx, tx); return own },
				"with an outcome unknown elsewhere":         func(context.Context, testTx) error { return elsewhere },
			} {
				e.exec("DELETE FROM fencepost.marks")
				err := db.fenced(t.Context(), claimOf("r", 5), inTurn(write5, e.endsSession, func(ctx context.Context, tx testTx) error {
					meanwhile()
					return fn(ctx, tx)
				}))
				e.wantInt(0, "rows", "SELECT count(*) FROM written")
				ownError := strings.Contains(at, "own error")
				var rejected *guard.RejectedError
				switch {
				case strings.Contains(at, "elsewhere"):
					if err != elsewhere {
						t.Errorf("%s, %s: got %v, want the callback's error itself", want, at, err)
					}
					continue
				case want == guard.ReasonUnavailable && ownError:
					wantReason(t, err, guard.ReasonOther, "%s, %s", want, at)
				default:
					wantReason(t, err, want, "%s, %s", want, at)
				}
				if ownError && !errors.Is(err, own) {
					t.Errorf("%s, %s: %v has lost the callback's error", want, at, err)
				}
				if want == guard.ReasonConflict && (!errors.As(err, &rejected) || rejected.Mark.LeaseID != "other") {
					t.Errorf("%s: got %v, want the other lease", at, err)
				}
			}
		}
	})
}

// TestDriversOwnEOF (P6): an error of the callback's own that looks like a lost connection is
// passed on unchanged and at once, though a newer holder is raising the mark: the session lives.
func TestDriversOwnEOF(t *testing.T) {
	eachWay(t, func(t *testing.T, e *env, open opened) {
		db := open(4, nil)
		must(t, e.db.Raise(t.Context(), claimOf("r", 5)))
		other := e.holding(claimOf("r", 5))
		var raising chan error
		ended := make(chan error, 1)
		go func() {
			ended <- db.fenced(context.Background(), claimOf("r", 5), func(context.Context, testTx) error {
				raising = e.start(func(func()) error { return e.db.Raise(context.Background(), claimOf("r", 6)) })
				return io.EOF
			})
		}()
		testkit.Eventually(t, "its end, or that it waits behind the raise", func() bool {
			return len(ended) > 0 || e.int("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND strpos(query, 'fencepost.enter(') > 0") > 0
		})
		if len(ended) == 0 {
			t.Error("it waits behind the raise")
		}
		must(t, other())
		if err := testkit.Receive(t, "its end", ended); err != io.EOF {
			t.Errorf("got %v, want io.EOF itself", err)
		}
		must(t, <-raising)
	})
}

// TestDriversUnread (P5, P6): a callback that leaves rows unread has made a mistake that no
// other try cures, and nothing is committed.
func TestDriversUnread(t *testing.T) {
	eachWay(t, func(t *testing.T, e *env, open opened) {
		db := open(1, nil)
		if _, is := db.(stdFence); is { // in which nothing is prepared that a busy connection would accept
			db = open(1, nil, func(c *pgx.ConnConfig) { c.DefaultQueryExecMode = pgx.QueryExecModeExec })
		}
		for range 2 {
			err := db.fenced(t.Context(), claimOf("r", 5), func(ctx context.Context, tx testTx) (err error) {
				const query = "INSERT INTO written SELECT generate_series(1, 1000) RETURNING token"
				switch tx := tx.(type) {
				case pgxTx:
					_, err = tx.tx.Query(ctx, query)
				case stdTx:
					var rows *sql.Rows
					if rows, err = tx.tx.QueryContext(ctx, query); err == nil {
						rows.Next()
					}
				}
				return err
			})
			wantReason(t, err, guard.ReasonInvalid)
			e.wantInt(0, "rows", "SELECT count(*) FROM written")
		}
		must(t, db.fenced(t.Context(), claimOf("r", 5), write5))
	})
}

// TestDriversCut (P5, P6): a context of the callback's own that ends while its statement is
// under way is the callback's business; the caller's is InTx's, with nothing committed.
func TestDriversCut(t *testing.T) {
	own := errors.New("the callback's own")
	eachWay(t, func(t *testing.T, e *env, open opened) {
		must(t, e.db.Raise(t.Context(), claimOf("r", 5)))
		for _, word := range []string{"begin", "fencepost.enter(", "INSERT INTO written"} {
			atWork := word == "INSERT INTO written"
			for _, callers := range []bool{true, false} {
				if !callers && !atWork {
					continue // the callback has no context yet
				}
				p, through := e.newProxy()
				db := open(2, nil, through)
				ctx, cancel := context.WithCancel(t.Context())
				inside, cut := context.WithCancel(context.Background())
				if callers {
					cut = cancel
				}
				p.set(func(message string) fate {
					if strings.Contains(message, word) && ctx.Err() == nil && inside.Err() == nil {
						cut()
						return mute
					}
					return forward
				})
				called := false
				err := db.fenced(ctx, claimOf("r", 5), func(ctx context.Context, tx testTx) error {
					called = true
					if callers {
						return write5(ctx, tx)
					}
					if _, err := tx.exec(inside, "INSERT INTO written VALUES (5)"); errors.Is(err, context.Canceled) {
						return own
					}
					return nil
				})
				p.set(nil)
				switch {
				case called != atWork && callers:
					t.Errorf("%s: the callback was called: %t", word, called)
				case callers && !errors.Is(err, context.Canceled):
					t.Errorf("%s, the caller's: got %v", word, err)
				case callers && !atWork:
					wantReason(t, err, guard.ReasonUnavailable, "%s", word)
				case !callers && !errors.Is(err, own):
					t.Errorf("%s: got %v, want the callback's own error", word, err)
				}
				p.CutAll()
				cancel()
				cut()
				e.wantInt(0, word+": rows", "SELECT count(*) FROM written")
			}
		}
	})
}

// TestDriversRestart (P6): a server that restarts while the callback is at work has committed
// nothing of it, and another try may succeed.
func TestDriversRestart(t *testing.T) {
	s := mortalServer(t)
	e := newEnvOn(t, 0, s)
	e.createWritten()
	onEachWay(t, e, func(t *testing.T, e *env, open opened) {
		db := open(2, nil)
		for range 2 { // killed, and the connections of the pool that it broke
			err := db.fenced(t.Context(), claimOf("r", 5), func(ctx context.Context, tx testTx) error {
				if err := write5(ctx, tx); err != nil {
					return err
				}
				must(t, s.Kill())
				restart(t, s, e)
				return write5(ctx, tx)
			})
			wantReason(t, err, guard.ReasonUnavailable)
		}
		e.wantInt(0, "rows", "SELECT count(*) FROM written")
	})
}

// TestDriversStale (P1): the callback of a stale claim is not called, and so does nothing by
// another way either. The control is a function that does not compare.
func TestDriversStale(t *testing.T) {
	eachWay(t, func(t *testing.T, e *env, open opened) {
		db := open(2, nil)
		must(t, db.Raise(t.Context(), claimOf("r", 6)))
		elsewhere := func(ctx context.Context, _ testTx) error { return db.unfenced(ctx, "INSERT INTO written VALUES (5)") }
		wantReason(t, db.fenced(t.Context(), claimOf("r", 5), elsewhere), guard.ReasonStale)
		e.wantInt(0, "rows", "SELECT count(*) FROM written")
		undo := e.mutate("enter", "IF NOT FOUND THEN", "IF false THEN")
		noError(t, db.fenced(t.Context(), claimOf("r", 5), elsewhere), "the control")
		e.wantInt(1, "rows of the control", "SELECT count(*) FROM written")
		undo()
	})
}

// TestDriversTwoDBs: a second DB on a pool of one connection is refused inside the callback of
// the first, since it would wait for what only the callback can give back.
func TestDriversTwoDBs(t *testing.T) {
	eachWay(t, func(t *testing.T, e *env, open opened) {
		db := open(1, nil)
		var second fence
		var err error
		if f, is := db.(pgxFence); is {
			second, err = pgxSessions{f.pool}.fence(&e.defaults)
		} else {
			second, err = stdSessions{pool: db.(stdFence).pool, admin: pgxSessions{e.admin}}.fence(&e.defaults)
		}
		must(t, err)
		must(t, db.fenced(t.Context(), claimOf("r", 5), func(ctx context.Context, _ testTx) error {
			for what, call := range e.calls(second, claimOf("s", 5), "InTx", "Raise", "Admit", "Mark", "Exec") {
				wantSays(t, call(ctx), guard.ReasonInvalid, "only one", "%s", what)
			}
			return nil
		}))
	})
}

// TestDriversDeferred (P6): a trigger's refusal at COMMIT names the claim that was refused, and
// not another of the transaction's.
func TestDriversDeferred(t *testing.T) {
	eachWay(t, func(t *testing.T, e *env, open opened) {
		e.exec(`DROP TABLE IF EXISTS late; CREATE TABLE late (id int);
			CREATE OR REPLACE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM fencepost.refuse('SF001', 'stale', 'z', 5, 'lease-5', 9, 'lease-9', false); RETURN NULL; END $$;
			CREATE CONSTRAINT TRIGGER late AFTER INSERT ON late DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION late()`)
		db := open(2, nil)
		insert := running("INSERT INTO late VALUES (1)")
		_, executed := db.fencedExec(t.Context(), claimOf("a", 5), "INSERT INTO late VALUES ($1)", 1)
		for what, err := range map[string]error{
			"InTxAll": db.fencedAll(t.Context(), []guard.Claim{claimOf("a", 5), claimOf("z", 5)}, nil, insert), "Exec": executed,
		} {
			wantRejected(t, err, guard.ReasonStale, claimOf("z", 5), 9, "%s", what)
		}
		e.wantInt(0, "rows", "SELECT count(*) FROM late")
	})
}
