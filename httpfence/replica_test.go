package httpfence_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/httpfence"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/sqlfence"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"
	"github.com/fencepost-go/fencepost/sqlfence/sqlrow"
)

// A write takes the account's row lock until it commits, so that seq is the
// order in which the writes took effect.
const (
	ledgerSchema = `
CREATE TABLE accounts (id text PRIMARY KEY, seq bigint NOT NULL DEFAULT 0, last_fencing_token bigint NOT NULL DEFAULT 0);
CREATE TABLE writes (seq bigint, token bigint);
INSERT INTO accounts (id) VALUES ('acme');`
	writeSQL = `WITH a AS (UPDATE accounts SET seq = seq + 1 WHERE id = 'acme' RETURNING seq)
INSERT INTO writes SELECT seq, $1 FROM a`
	// staleSQL counts the writes that came after one of a newer holder.
	staleSQL = `SELECT count(*) FILTER (WHERE token < highest), count(*) FROM (
  SELECT token, max(token) OVER (ORDER BY seq) AS highest FROM writes) w`
)

// ledger returns the URL of a database with sqlfence's schema and the ledger's.
func ledger(t testing.TB) string {
	return pgtest.MigratedDatabase(t, "ledger", func(ctx context.Context, pool *pgxpool.Pool) error {
		err := sqladmin.Pgx(pool).Migrate(ctx)
		if err == nil {
			_, err = pool.Exec(ctx, ledgerSchema)
		}
		return err
	})
}

// replica is one process of the service, with a pool and a DB of its own.
type replica struct {
	db     *sqlfence.DB[pgx.Tx]
	pool   *pgxpool.Pool
	rows   sqlrow.Executor
	closes *sqlrow.Table
}

func newReplica(t testing.TB, url string) *replica {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	// The timeout for a hanging holder must not end one that a slow machine
	// delays.
	db, err := sqlfence.Pgx(pool, &sqlfence.Options{
		LockTimeout: testkit.Patience, IdleTimeout: testkit.Patience, TerminateAfter: testkit.Patience, CommitTimeout: testkit.Patience,
	})
	if err != nil {
		t.Fatal(err)
	}
	rows := sqlrow.Pgx(pool)
	accounts, err := sqlrow.NewTable([]string{"accounts"}, []string{"id"}, nil, &sqlrow.TableOptions{InsecureAnyResource: true, Rule: guard.SameOrNewer})
	if err != nil {
		t.Fatal(err)
	}
	return &replica{db, pool, rows, accounts}
}

// fence guards with the replica's marks and transactions. Most tests here
// distinguish holders only by their tokens.
func (p *replica) fence() *httpfence.TxMiddleware {
	return guard.Must(httpfence.NewTx(p.db.Transactor(), httpfence.ChiParam("id"), &httpfence.Options{
		MaxWait: testkit.Patience, TokenOnly: true, InsecureAnyResource: true,
		Logger: slog.New(slog.DiscardHandler),
	}))
}

// surfaces are the ways to guard the handler; work is what takes its time.
var surfaces = map[string]func(p *replica, work func(*http.Request)) http.Handler{
	"admission alone": func(p *replica, work func(*http.Request)) http.Handler {
		fence := p.fence()
		return route(fence.Admit, func(w http.ResponseWriter, r *http.Request) {
			work(r)
			claim, _ := guard.ClaimFrom(r.Context())
			if _, err := p.pool.Exec(r.Context(), writeSQL, int64(claim.Token)); err != nil {
				fence.Reject(w, r, err)
			}
		})
	},
	"Admit and a fenced statement": func(p *replica, work func(*http.Request)) http.Handler {
		fence := p.fence()
		return route(fence.Admit, func(w http.ResponseWriter, r *http.Request) {
			work(r)
			claim, _ := guard.ClaimFrom(r.Context())
			err := pgx.BeginFunc(r.Context(), p.pool, func(tx pgx.Tx) error {
				if err := p.closes.Update(r.Context(), sqlrow.Pgx(tx), claim, sqlrow.Key{claim.Resource}, sqlrow.Set{"seq": sqlrow.Raw("seq + 1")}); err != nil {
					return err
				}
				_, err := tx.Exec(r.Context(), `INSERT INTO writes SELECT seq, $1 FROM accounts WHERE id = 'acme'`, int64(claim.Token))
				return err
			})
			if err != nil {
				fence.Reject(w, r, err)
			}
		})
	},
	"InTx": func(p *replica, work func(*http.Request)) http.Handler {
		fence := p.fence()
		return route(fence.InTx, func(w http.ResponseWriter, r *http.Request) {
			work(r)
			claim, _ := guard.ClaimFrom(r.Context())
			tx, _ := p.db.TxFrom(r.Context())
			if _, err := tx.Exec(r.Context(), writeSQL, int64(claim.Token)); err != nil {
				fence.Reject(w, r, err)
				return
			}
			w.WriteHeader(http.StatusOK)
		})
	},
}

func route(guarded func(http.Handler) http.Handler, h http.HandlerFunc) http.Handler {
	router := chi.NewRouter()
	router.With(guarded).Post("/accounts/{id}/close", h)
	return router
}

func post(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		return err
	}
	resp, err := httpfence.Do(client, req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}
