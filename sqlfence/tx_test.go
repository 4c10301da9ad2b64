package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/httpfence"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
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
