package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/httpfence"
)

var (
	_ httpfence.Transactor = Transactor[pgx.Tx]{}
	_ httpfence.Transactor = Transactor[*sql.Tx]{}
)

type transactor interface {
	httpfence.Transactor
	InsecureTx(ctx context.Context, fn func(ctx context.Context) error) error
}

// transactor returns the Transactor of either driver, and a function that
// inserts through the transaction in its context.
func (e *env) transactor() (t transactor, insert func(ctx context.Context, token guard.Token) error) {
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
		// The control: without the fence the stale one gets through.
		noError(t, tx.InsecureTx(ctx, work(9)), "unfenced")
		mine := errors.New("mine")
		for name, run := range map[string]func(func(context.Context) error) error{
			"fenced":   func(fn func(context.Context) error) error { return tx.InTx(ctx, claimOf("r", 11), fn) },
			"unfenced": func(fn func(context.Context) error) error { return tx.InsecureTx(ctx, fn) },
		} {
			if err := run(func(ctx context.Context) error { return errors.Join(insert(ctx, 12), mine) }); !errors.Is(err, mine) {
				t.Errorf("%s: %v", name, err)
			}
			func() {
				defer func() {
					if got := recover(); got != mine {
						t.Errorf("%s: panic %v", name, got)
					}
				}()
				_ = run(func(ctx context.Context) error { _ = insert(ctx, 12); panic(mine) })
			}()
			var pg *pgconn.PgError
			if err := run(work(11)); guard.ReasonOf(err) != guard.ReasonOther || !errors.As(err, &pg) || pg.ConstraintName != "work_token_key" { // the deferred one
				t.Errorf("%s: %v", name, err)
			}
			wantReason(t, run(func(ctx context.Context) error { return tx.InTx(ctx, claimOf("r", 11), work(11)) }), guard.ReasonInvalid, "%s, nested", name)
			wantReason(t, run(func(ctx context.Context) error {
				return tx.InsecureTx(ctx, func(ctx context.Context) error { return insert(ctx, 12) })
			}), guard.ReasonInvalid, "%s, nested unfenced", name)
			// What was rolled back is gone.
			if n := e.int("SELECT count(*) FROM work WHERE token = 12"); n != 0 {
				t.Errorf("%s: %d rows were not rolled back", name, n)
			}
		}
		over, cancel := context.WithCancel(ctx)
		defer cancel()
		for _, early := range []bool{false, true} { // the context ends inside, and has ended before
			wantReason(t, tx.InsecureTx(over, func(ctx context.Context) error {
				if early {
					t.Error("called although its context has ended")
				}
				defer cancel()
				return insert(ctx, 12)
			}), guard.ReasonUnavailable, "ended early %v", early)
		}
		if n := e.int("SELECT count(*) FROM work"); n != 3 || e.int("SELECT sum(token) FROM work") != 30 {
			t.Errorf("%d rows", n)
		}
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
			TokenOnly: true, InsecureAnyResource: true, Observer: guard.LogObserver(slog.New(slog.DiscardHandler)),
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
