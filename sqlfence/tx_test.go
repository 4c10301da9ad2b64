package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/httpfence"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
	"github.com/fencepost-go/fencepost/sqlfence/sqlrow"
)

// written counts what the transactions of a test committed.
func (e *env) written() int64 { e.Helper(); return e.int("SELECT count(*) FROM written") }

func (e *env) createWritten() {
	e.exec("CREATE TABLE written (token bigint)")
}

// TestInTxRollsBack: an error, a panic and runtime.Goexit roll back and are
// passed on unchanged; the mark stays raised, so that a failed takeover still keeps
// the predecessor out, and later transactions run. A callback that returns nil although a
// statement of its own failed has committed nothing (P5), and gets an error that says so.
// The control is the same write when nothing goes wrong.
func TestInTxRollsBack(t *testing.T) {
	failed := errors.New("failed")
	eachDriver(t, func(t *testing.T, e *env) {
		e.createWritten()
		check := func(what string) {
			t.Helper()
			if e.written() != 0 {
				t.Errorf("%s: the write is there", what)
			}
			wantMark(t, e.db, what, 5)
		}
		write := func(then func() error) func(context.Context, testTx) error {
			return func(ctx context.Context, tx testTx) error { return errors.Join(write5(ctx, tx), then()) }
		}
		if err := e.db.fenced(t.Context(), claimOf("error", 5), write(func() error { return failed })); !errors.Is(err, failed) {
			t.Errorf("got %v, want the callback's error", err)
		}
		check("error")

		swallowing := func(ctx context.Context, tx testTx) error { write5(ctx, tx); tx.exec(ctx, "SELECT 1/0"); return nil }
		err := e.db.fenced(t.Context(), claimOf("swallowed", 5), swallowing)
		if wantReason(t, err, guard.ReasonOther, "a swallowed error"); !errors.Is(err, sqlkit.ErrAborted) {
			t.Errorf("got %v, want that nothing was committed", err)
		}
		check("swallowed")

		exact := func(context.Context, testTx) error { return failed }
		if err := e.db.fenced(t.Context(), claimOf("exact", 5), exact); err != failed {
			t.Errorf("got %v, want the callback's error itself", err)
		}

		func() {
			defer func() {
				if got := recover(); got != "boom" {
					t.Errorf("recovered %v, want the panic", got)
				}
			}()
			e.db.fenced(t.Context(), claimOf("panic", 5), write(func() error { panic("boom") }))
		}()
		check("panic")

		exited := make(chan struct{})
		go func() {
			defer close(exited)
			e.db.fenced(context.Background(), claimOf("goexit", 5), write(func() error { runtime.Goexit(); return nil }))
		}()
		<-exited
		check("goexit")
		testkit.Eventually(t, "the connections to be given back", func() bool { return e.db.inUse() == 0 })
		noError(t, e.db.fenced(t.Context(), claimOf("r", 5), write5), "the control")
		e.wantInt(1, "rows of the control", "SELECT count(*) FROM written")
	})
}

// TestInTxCancelledInside: a context that ends inside the callback commits
// nothing, whether the callback says so or not.
func TestInTxCancelledInside(t *testing.T) {
	lost := errors.New("the lease is lost")
	eachDriver(t, func(t *testing.T, e *env) {
		e.createWritten()
		for what, after := range map[string]func(ctx context.Context, tx testTx, cancel func()) error{
			"unnoticed": func(_ context.Context, _ testTx, cancel func()) error { cancel(); return nil },
			"swallowed": func(ctx context.Context, tx testTx, cancel func()) error {
				cancel()
				tx.exec(ctx, "SELECT 1")
				return nil
			},
			"in flight": func(ctx context.Context, tx testTx, cancel func()) error {
				go func() {
					defer cancel()
					e.waitFor("the statement", "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'")
				}()
				tx.exec(ctx, "SELECT pg_sleep(600)")
				return nil
			},
			"returned": func(ctx context.Context, tx testTx, cancel func()) error {
				cancel()
				_, err := tx.exec(ctx, "SELECT 1")
				return err
			},
		} {
			ctx, cancel := context.WithCancelCause(t.Context())
			err := e.db.fenced(ctx, claimOf("r", 5), func(ctx context.Context, tx testTx) error {
				if err := write5(ctx, tx); err != nil {
					return err
				}
				return after(ctx, tx, func() { cancel(lost) })
			})
			if what != "returned" && (guard.ReasonOf(err) != guard.ReasonUnavailable || !errors.Is(err, lost)) {
				t.Errorf("%s: got %v, want ErrUnavailable with the cause", what, err)
			}
			if err == nil || e.written() != 0 {
				t.Errorf("%s: %v, %d rows", what, err, e.written())
			}
		}
	})
}

// TestUpdateInTx: the single statement inside a transaction applies with it,
// and a lost connection there is not an unknown outcome: no COMMIT was sent.
func TestUpdateInTx(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.createPairs()
		e.exec("INSERT INTO pairs (a, b, v) VALUES (1, 'x', 'old')")
		table := e.table("pairs", []string{"a", "b"}, nil)
		update := func(ctx context.Context, tx testTx, token guard.Token, value any) error {
			return table.Update(ctx, tx.in(), claimOf("r", token), Key{1, "x"}, Set{"v": value})
		}
		failed := errors.New("failed")
		err := e.db.plain(t.Context(), func(ctx context.Context, tx testTx) error {
			if err := update(ctx, tx, 5, "new"); err != nil {
				return err
			}
			wantReason(t, update(ctx, tx, 4, "older"), guard.ReasonStale, "an older token in the same transaction")
			return failed
		})
		if !errors.Is(err, failed) || e.text("SELECT v || last_fencing_token FROM pairs") != "old0" {
			t.Errorf("%v, and the row was written", err)
		}
		for what, spoil := range map[string]func(ctx context.Context, tx testTx) error{
			"ended": func(_ context.Context, tx testTx) error { return tx.end(false) },
			"terminated": func(ctx context.Context, tx testTx) error {
				pid, err := tx.int(ctx, "SELECT pg_backend_pid()")
				e.terminate(pid)
				return err
			},
			"aborted": func(ctx context.Context, tx testTx) error { tx.exec(ctx, "SELECT 1/0"); return nil },
		} {
			e.db.plain(t.Context(), func(ctx context.Context, tx testTx) error {
				noError(t, spoil(ctx, tx))
				taking := e.table("pairs", []string{"a", "b"}, &TableOptions{Rule: guard.SameOrNewer})
				for way, err := range map[string]error{
					"Update":      update(ctx, tx, 5, "new"),
					"Upsert":      table.Upsert(ctx, tx.in(), claimOf("r", 5), Key{1, "x"}, Set{"v": "new"}),
					"Table.Raise": taking.Raise(ctx, tx.in(), claimOf("r", 5), Key{1, "x"}, nil),
					"Enter":       tx.enter(ctx, claimOf("r", 5)),
				} {
					wantReason(t, err, guard.ReasonUnavailable, "%s in a transaction that was %s", way, what)
				}
				return failed
			})
		}
		err = e.db.fenced(t.Context(), claimOf("r", 5), func(ctx context.Context, tx testTx) error { return update(ctx, tx, 5, "new") })
		if err != nil || e.text("SELECT v || last_fencing_token FROM pairs") != "new5" {
			t.Errorf("inside InTx: %v", err)
		}
	})
}

var (
	_ httpfence.Transactor = Transactor[pgx.Tx]{}
	_ httpfence.Transactor = Transactor[*sql.Tx]{}
)

// transactor returns the Transactor of either driver, and a function that
// inserts through the transaction in its context.
func (e *env) transactor() (t httpfence.Transactor, insert func(ctx context.Context, token guard.Token) error) {
	const statement = "INSERT INTO work (token) VALUES ($1)"
	errNone := errors.New("no transaction in the context")
	switch f := e.db.(type) {
	case pgxFence:
		return f.Transactor(), func(ctx context.Context, token guard.Token) error {
			tx, ok := f.TxFrom(ctx)
			if !ok {
				return errNone
			}
			_, err := tx.Exec(ctx, statement, int64(token))
			return err
		}
	case stdFence:
		return f.Transactor(), func(ctx context.Context, token guard.Token) error {
			tx, ok := f.TxFrom(ctx)
			if !ok {
				return errNone
			}
			_, err := tx.ExecContext(ctx, statement, int64(token))
			return err
		}
	}
	panic("unknown driver")
}

func TestTransactor(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.exec("CREATE TABLE work (token bigint UNIQUE DEFERRABLE INITIALLY DEFERRED)")
		tx, insert := e.transactor()
		ctx := t.Context()
		work := func(token guard.Token) func(context.Context) error {
			return func(ctx context.Context) error {
				if claim, ok := guard.ClaimFrom(ctx); ok && claim.Token != token {
					t.Errorf("claim %+v in the transaction of token %v", claim, token)
				}
				return insert(ctx, token)
			}
		}
		must(t, tx.InTx(ctx, claimOf("r", 10), work(10)))
		must(t, tx.InTx(ctx, claimOf("r", 11), work(11)))
		wantReason(t, tx.InTx(ctx, claimOf("r", 10), work(10)), guard.ReasonStale, "stale")
		mine := errors.New("mine")
		if err := tx.InTx(ctx, claimOf("r", 11), func(ctx context.Context) error { return errors.Join(insert(ctx, 12), mine) }); !errors.Is(err, mine) {
			t.Errorf("got %v, want the function's own error", err)
		}
		var pg *pgconn.PgError
		if err := tx.InTx(ctx, claimOf("r", 11), work(11)); guard.ReasonOf(err) != guard.ReasonOther || !errors.As(err, &pg) || pg.ConstraintName != "work_token_key" { // the deferred one
			t.Errorf("a deferred constraint: %v", err)
		}
		wantReason(t, tx.InTx(ctx, claimOf("r", 11), func(ctx context.Context) error { return tx.InTx(ctx, claimOf("r", 11), work(11)) }), guard.ReasonInvalid, "nested")
		e.wantInt(21, "the sum of what was committed", "SELECT sum(token) FROM work")
		// Another DB's transaction is not this one's.
		other := &env{TB: e.TB, driver: e.driver, url: e.url, admin: e.admin, opener: e.opener, db: e.open(nil)}
		foreign, _ := other.transactor()
		if err := foreign.InTx(ctx, claimOf("r", 11), func(ctx context.Context) error { return insert(ctx, 12) }); err == nil || errors.Is(err, guard.ErrInvalid) {
			t.Errorf("another DB: %v", err)
		}
	})
}

// TestTransactorBehindHTTP tests the whole chain: a handler that finds its
// transaction, and whose answer is sent after the COMMIT.
func TestTransactorBehindHTTP(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.exec("CREATE TABLE work (token bigint UNIQUE DEFERRABLE INITIALLY DEFERRED)")
		tx, insert := e.transactor()
		fence, err := httpfence.NewTx(tx, func(*http.Request) (string, error) { return "enforced", nil }, &httpfence.Options{
			TokenOnly: true, InsecureAnyResource: true, Logger: slog.New(slog.DiscardHandler),
		})
		must(t, err)
		h := fence.InTx(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			token, err := guard.ParseToken(r.Header.Get(httpfence.TokenHeader))
			noError(t, err)
			noError(t, insert(r.Context(), token))
			if r.URL.Path == "/fails" {
				w.WriteHeader(http.StatusConflict)
			}
			_, _ = io.WriteString(w, "mine")
		}))
		for _, c := range []struct {
			path, token string
			status      int
		}{
			{"/", "20", 200}, {"/", "21", 200}, {"/", "19", 412}, {"/fails", "22", 409}, {"/", "22", 200},
			{"/", "22", 500}, // COMMIT finds the deferred constraint violated, after the handler's 200
		} {
			r := httptest.NewRequest("POST", c.path, nil)
			r.Header.Set(httpfence.TokenHeader, c.token)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != c.status || (w.Code < 300 || w.Code == 409) != (w.Body.String() == "mine") {
				t.Errorf("%+v: %d %s", c, w.Code, w.Body)
			}
		}
		e.wantInt(3, "rows", "SELECT count(*) FROM work")
	})
}

// levels are the isolation levels with their names as a server's default.
var levels = map[Isolation]string{ReadCommitted: "read committed", RepeatableRead: "repeatable read", Serializable: "serializable"}

// entering is the caller's own transaction that Enter fences.
func entering(db fence) work {
	return func(ctx context.Context, claim guard.Claim, fn func(ctx context.Context, tx testTx) error) error {
		return db.plain(guard.WithClaim(ctx, claim), inTurn(enters(claim), fn))
	}
}

// TestEnterRollsBack: the mark that Enter raised is rolled back with its
// transaction, and until then a raise waits for it.
func TestEnterRollsBack(t *testing.T) {
	failed := errors.New("failed")
	eachDriver(t, func(t *testing.T, e *env) {
		e.putMark("r", guard.Mark{Token: 4, LeaseID: "lease-4"})
		raised := make(chan error, 1)
		err := entering(e.db)(t.Context(), claimOf("r", 5), func(context.Context, testTx) error {
			go func() { raised <- e.db.Raise(context.Background(), claimOf("r", 6)) }()
			e.waitForWaiters(1)
			return failed
		})
		if !errors.Is(err, failed) {
			t.Fatal(err)
		}
		noError(t, <-raised)
		e.putMark("r", guard.Mark{Token: 4, LeaseID: "lease-4"})
		entering(e.db)(t.Context(), claimOf("r", 5), func(context.Context, testTx) error { return failed })
		wantMark(t, e.db, "r", 4)
	})
}

// TestEnterInSavepoint (P1): inside a savepoint of any kind Enter is refused;
// before one it holds, even if the savepoint is rolled back.
func TestEnterInSavepoint(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		for _, token := range []guard.Token{5, 6} { // the mark, and above it
			e.putMark("r", guard.Mark{Token: 5, LeaseID: "lease-5"})
			err := e.db.plain(t.Context(), inTurn(running("SAVEPOINT s"), enters(claimOf("r", token))))
			wantRefused(t, err, guard.ReasonInvalid, pgerr.Subtransaction, "token %d", token)
		}
		noError(t, entering(e.db)(t.Context(), claimOf("r", 5), inTurn(running("SAVEPOINT s"), running("SELECT 1"), running("ROLLBACK TO s"),
			func(context.Context, testTx) error { return e.raiseMustWait(claimOf("r", 6)) })))
	})
}

// raiseMustWait reports an error if a raise does not wait for the calling
// transaction.
func (e *env) raiseMustWait(claim guard.Claim) error {
	err := e.open(&Options{RaiseTimeout: 50 * time.Millisecond, TerminateAfter: endsNobody}).Raise(context.Background(), claim) // else a slow machine ends it
	if guard.ReasonOf(err) != guard.ReasonUnavailable {
		return fmt.Errorf("a raise did not wait: %v", err)
	}
	return nil
}

// TestEnterInSavepointControl: without the check of xmin, Enter in a savepoint
// that is rolled back leaves a transaction whose stale write commits.
func TestEnterInSavepointControl(t *testing.T) {
	e := someEnv(t)
	e.createWritten()
	e.mutate("enter_row", "IF mine <> pg_current_xact_id()::xid", "IF false")
	e.putMark("r", guard.Mark{Token: 5, LeaseID: "lease-5"})
	err := e.db.plain(t.Context(), inTurn(running("SAVEPOINT s"), enters(claimOf("r", 5)), running("ROLLBACK TO s"), e.raises(claimOf("r", 6)), write5))
	if err != nil || e.written() != 1 {
		t.Errorf("no stale write: %v, %d rows", err, e.written())
	}
}

// TestEnterBadInput: refused before anything is sent, or with a rollback; so is a transaction
// that is nil.
func TestEnterBadInput(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		var none testTx
		switch f := e.db.(type) {
		case pgxFence:
			none = pgxTx{db: f.DB}
		case stdFence:
			none = stdTx{db: f.DB}
		}
		wantInvalid(t, "Enter of nothing", none.enter(t.Context(), claimOf("r", 5)), "tx", "nil")
		wantInvalid(t, "Present of nothing", none.present(t.Context(), claimOf("r", 5)), "tx", "nil")
		e.db.plain(t.Context(), func(ctx context.Context, tx testTx) error {
			wantInvalid(t, "no claim", tx.enter(ctx), "claims", "")
			wantInvalid(t, "twice", tx.enter(ctx, claimOf("r", 5), claimOf("r", 5)), "claims", `"r"`)
			wantInvalid(t, "malformed", tx.enter(ctx, guard.Claim{Resource: "r"}), "token", "")
			if _, err := tx.exec(ctx, "SELECT 1"); err != nil {
				t.Errorf("the transaction was touched: %v", err)
			}
			return nil
		})
		noError(t, e.db.fenced(t.Context(), claimOf("r", 5), func(ctx context.Context, tx testTx) error {
			wantInvalid(t, "another resource", tx.enter(ctx, claimOf("other", 5)), "claim", `"other"`)
			wantInvalid(t, "a newer raise inside", e.db.Raise(ctx, claimOf("r", 6)), "claim.Token", `"6"`)
			noError(t, e.db.Raise(ctx, claimOf("another", 6)), "a raise of another resource inside")
			return tx.enter(ctx, claimOf("r", 5))
		}))
	})
}

// TestInTxAll: several resources are fenced at once, in any order; one refusal
// refuses all and names its claim.
func TestInTxAll(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		nothing := func(context.Context, testTx) error { return nil }
		for level := range levels {
			e.exec("DELETE FROM fencepost.marks")
			opts := &TxOptions{Isolation: level}
			err := e.db.fencedAll(t.Context(), []guard.Claim{claimOf("b", 5), claimOf("a", 7)}, opts, func(ctx context.Context, tx testTx) error {
				var got string
				if n, err := tx.int(ctx, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"); err != nil || n != 2 {
					got = fmt.Sprint(n, " locks: ", err)
				}
				if n, err := tx.int(ctx, "SELECT count(*) FROM (SELECT current_setting('transaction_isolation')) AS s(l) WHERE l = lower($1)", level.String()); err != nil || n != 1 {
					got += fmt.Sprint("not ", level, err)
				}
				if got != "" {
					return errors.New(got)
				}
				return errors.Join(e.raiseMustWait(claimOf("a", 8)), e.raiseMustWait(claimOf("b", 6)))
			})
			noError(t, err, "%v", level)
			err = e.db.fencedAll(t.Context(), []guard.Claim{claimOf("a", 7), claimOf("b", 4)}, opts, ran)
			wantRejected(t, err, guard.ReasonStale, claimOf("b", 4), 5, "%v", level)
		}
		wantInvalid(t, "none", e.db.fencedAll(t.Context(), nil, nil, nothing), "claims", "")
		wantInvalid(t, "twice", e.db.fencedAll(t.Context(), []guard.Claim{claimOf("r", 5), claimOf("r", 6)}, nil, nothing), "claims", `"r"`)
		wantInvalid(t, "too many", e.db.fencedAll(t.Context(), slices.Repeat([]guard.Claim{claimOf("r", 5)}, maxClaims+1), nil, nothing), "claims", `"65"`)
		wantInvalid(t, "level", e.db.fencedAll(t.Context(), []guard.Claim{claimOf("r", 5)}, &TxOptions{Isolation: 9}, nothing), "TxOptions.Isolation", "9")
	})
}

// TestInTxAllNoCircle: transactions over the same resources in opposite orders,
// with raises between them, never deadlock.
func TestInTxAllNoCircle(t *testing.T) {
	e := someEnv(t)
	var token atomic.Int64
	token.Store(1)
	errs := make(chan error, 6)
	for i := range cap(errs) {
		go func() {
			var err error
			for range campaign(15) {
				a, b := claimOf("a", 1), claimOf("b", 1)
				claims := []guard.Claim{a, b}
				if i%2 == 0 {
					claims = []guard.Claim{b, a}
				}
				n := guard.Token(token.Add(1))
				claims[0].Token, claims[1].Token = n, n
				claims[0].LeaseID, claims[1].LeaseID = "", ""
				in := func() error {
					return e.db.fencedAll(context.Background(), claims, nil, running("SELECT pg_sleep(0.001)"))
				}
				if i >= 3 {
					in = func() error {
						return e.db.plain(context.Background(), func(ctx context.Context, tx testTx) error { return tx.enter(ctx, claims...) })
					}
				}
				if one := in(); one != nil && !errors.Is(one, guard.ErrStale) {
					err = one
				}
			}
			errs <- err
		}()
	}
	for range cap(errs) {
		noError(t, <-errs)
	}
}

// TestEnterAfterSnapshot (P1, P2): above READ COMMITTED, a raise, or another
// Enter, that was committed after the snapshot is 40001 and not overlooked.
func TestEnterAfterSnapshot(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		for _, level := range []Isolation{RepeatableRead, Serializable} {
			db := e.serverDefault("default_transaction_isolation", levels[level])
			for what, meanwhile := range map[string]func() error{
				"a raise": func() error { return e.db.Raise(context.Background(), claimOf("r", 6)) },
				"another Enter": func() error {
					return entering(db)(context.Background(), claimOf("r", 5), func(context.Context, testTx) error { return nil })
				},
			} {
				e.putMark("r", guard.Mark{Token: 5, LeaseID: "lease-5"})
				err := db.plain(t.Context(), inTurn(
					running("SELECT count(*) FROM pg_class"), // the snapshot
					func(context.Context, testTx) error { return meanwhile() },
					enters(claimOf("r", 5)),
				))
				wantRefused(t, err, guard.ReasonUnavailable, pgerr.Serialization, "%v, %s", level, what)
			}
		}
	})
}

// TestTwoDBsInOneTransaction: a second DB that enters in the transaction of the first
// does not end it, and its own marker is found too.
func TestTwoDBsInOneTransaction(t *testing.T) {
	bothDrivers(t, func(t *testing.T, e *env) {
		e.createWritten()
		other := e.open(nil)
		must(t, e.db.Raise(t.Context(), claimOf("s", 5)))
		err := e.db.fenced(t.Context(), claimOf("r", 5), func(ctx context.Context, tx testTx) error {
			entered := func() error {
				if x, ok := tx.(pgxTx); ok {
					return other.(pgxFence).Enter(ctx, x.tx, claimOf("s", 5))
				}
				return other.(stdFence).Enter(ctx, tx.(stdTx).tx, claimOf("s", 5))
			}
			return errors.Join(entered(), entered(), write5(ctx, tx))
		})
		if err != nil || e.written() != 1 {
			t.Errorf("%v, %d rows", err, e.written())
		}
	})
}

// TestReturning: Update and Upsert read the row as they wrote it; a refusal
// reads nothing and has its reason.
func TestReturning(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.exec("CREATE TABLE n (id int PRIMARY KEY, v int, w text DEFAULT 'd', last_fencing_token bigint NOT NULL DEFAULT 0); INSERT INTO n VALUES (1, 40, 'a', 3)")
		table, ctx := e.table("n", []string{"id"}, nil), t.Context()
		var v int
		var w string
		dest := Dest{"w": &w, "v": &v}
		if err := table.Update(ctx, e.db, claimOf("r", 5), Key{1}, Set{"v": sqlrow.Raw("v + $1", 2)}, dest); err != nil || v != 42 || w != "a" {
			t.Errorf("update: %v, %d, %q", err, v, w)
		}
		if err := table.Upsert(ctx, e.db, claimOf("r", 5), Key{2}, Set{"v": 7}, dest); err != nil || v != 7 || w != "d" {
			t.Errorf("insert: %v, %d, %q", err, v, w)
		}
		if err := table.Upsert(ctx, e.db, claimOf("r", 6), Key{2}, Set{"v": 8}, dest); err != nil || v != 8 {
			t.Errorf("upsert: %v, %d", err, v)
		}
		v = -1
		if err := table.Update(ctx, e.db, claimOf("r", 4), Key{1}, Set{"v": 1}, dest); !errors.Is(err, guard.ErrStale) || v != -1 {
			t.Errorf("stale: %v, %d", err, v)
		}
		if err := table.Update(ctx, e.db, claimOf("r", 7), Key{1}, Set{"v": 9}, Dest{"w": &w}, Dest{"v": &v}); err != nil || v != 9 || w != "a" {
			t.Errorf("two dests: %v, %d, %q", err, v, w)
		}
		wantInvalid(t, "no pointer", table.Update(ctx, e.db, claimOf("r", 7), Key{1}, Set{"v": 1}, Dest{"v": 1}), "dest column v", "int")
	})
}

// TestEnterAnotherTransaction (P1, P5): Enter in a callback of InTx skips only
// the transaction of that InTx. Another transaction, which may outlive it, is
// fenced separately; so is one that is entered with the callback's context
// after InTx is over.
func TestEnterAnotherTransaction(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		claim := claimOf("r", 5)
		fenced := e.open(&Options{LockTimeout: 100 * time.Millisecond, RaiseTimeout: 100 * time.Millisecond, TerminateAfter: endsNobody})
		newer := func(when string) {
			t.Helper()
			wantState(t, fenced.Raise(t.Context(), claimOf("r", 6)), pgerr.LockTimeout, "%s: a raise", when)
		}
		var after context.Context
		must(t, fenced.plain(t.Context(), func(_ context.Context, other testTx) error {
			err := fenced.fenced(t.Context(), claim, func(ctx context.Context, own testTx) error {
				after = ctx
				noError(t, own.enter(ctx, claim), "its own transaction")
				return other.enter(ctx, claim)
			})
			newer("while the other transaction is open")
			return err
		}))
		noError(t, fenced.plain(t.Context(), func(_ context.Context, late testTx) error {
			if err := late.enter(after, claim); err != nil {
				return err
			}
			newer("while a late transaction is open")
			return nil
		}))
		noError(t, fenced.Raise(t.Context(), claimOf("r", 6)), "afterwards")
	})
}

// TestInTxHoldsNoSnapshot: a callback that computes after a write is in nobody's way but that of
// its resource's raises: an open snapshot would hold up CREATE INDEX CONCURRENTLY and vacuum.
// The control is a cursor.
func TestInTxHoldsNoSnapshot(t *testing.T) {
	e := someEnv(t)
	e.exec("CREATE TABLE written (n int); INSERT INTO written VALUES (0)")
	for _, cursor := range []bool{false, true} {
		must(t, e.db.fenced(t.Context(), claimOf("r", 5), func(ctx context.Context, tx testTx) error {
			pid, err := tx.int(ctx, "SELECT pg_backend_pid()")
			must(t, err)
			if cursor {
				_, err := tx.exec(ctx, "DECLARE mine CURSOR FOR SELECT 1")
				must(t, err)
			}
			_, err = tx.exec(ctx, "UPDATE written SET n = n + 1")
			must(t, err)
			if holds := e.int("SELECT count(backend_xmin) FROM pg_stat_activity WHERE pid = $1", pid) == 1; holds != cursor {
				t.Errorf("with a cursor %v: the session holds a snapshot: %v", cursor, holds)
			}
			return nil
		}))
	}
}
