package main

import (
	"context"
	"fmt"
	"net/http"

	"github.com/go-chi/chi/v5"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/httpfence"
	"github.com/fencepost-go/fencepost/sqlfence"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"
)

// An entry takes the account's row lock until it commits, so that seq is the
// order in which entries took effect.
const (
	schema = `
CREATE TABLE accounts (id text PRIMARY KEY, seq bigint NOT NULL DEFAULT 0);
CREATE TABLE entries (seq bigint, token bigint);
INSERT INTO accounts (id) VALUES ('acme')`
	entrySQL = `WITH a AS (UPDATE accounts SET seq = seq + 1 WHERE id = $1 RETURNING seq)
INSERT INTO entries SELECT seq, $2 FROM a`
	staleSQL = `SELECT count(*) FILTER (WHERE token < highest), count(*) FROM (
  SELECT token, max(token) OVER (ORDER BY seq) AS highest FROM entries) e`
)

// accountOf returns the account's ID, for both the mark and the row: chi's value
// may still be escaped. The lease client also uses accounts to name its leases.
var (
	accounts  = guard.Must(guard.NewTemplate("account:{id}"))
	accountOf = httpfence.ChiParam("id")
)

type replica struct {
	db     *sqlfence.DB[pgx.Tx]
	pool   *pgxpool.Pool
	fence  *httpfence.TxMiddleware
	guard  func(http.Handler) http.Handler
	txFrom func(context.Context) (pgx.Tx, bool)
	work   func() // what makes an entry take time
}

func newReplica(ctx context.Context, pool *pgxpool.Pool, fenced bool, work func()) (*replica, error) {
	db, err := sqlfence.Pgx(pool, nil)
	if err != nil {
		return nil, err
	}
	if err := sqladmin.Pgx(pool).Migrate(ctx); err != nil {
		return nil, err
	}
	resource, err := httpfence.Named(accounts, httpfence.Bindings{"id": accountOf})
	if err != nil {
		return nil, err
	}
	// The store and the transaction are one database: a resource has one mark.
	fence, err := httpfence.NewTx(db.Transactor(), resource, nil)
	if err != nil {
		return nil, err
	}
	r := &replica{db: db, pool: pool, fence: fence, guard: fence.InTx, txFrom: db.TxFrom, work: work}
	if !fenced {
		r.guard, r.txFrom = r.withoutFence, unfencedTx
	}
	return r, nil
}

func (s *replica) handler() http.Handler {
	r := chi.NewRouter()
	// Requests for missing accounts get their response before the fence, or every
	// made-up name would get a mark, which stays even if its work is rolled
	// back.
	r.With(s.mustExist, s.guard).Post("/accounts/{id}/entries", s.enter)
	return r
}

func (s *replica) mustExist(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		found := false
		account, err := accountOf(r)
		if err == nil {
			err = s.pool.QueryRow(r.Context(), `SELECT EXISTS (SELECT FROM accounts WHERE id = $1)`, account).Scan(&found)
		}
		if err == nil && !found {
			err = guard.ErrNotFound
		}
		if err != nil {
			s.fence.Reject(w, r, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// enter knows nothing of fences: its writes through the transaction in its
// context take effect if it responds with a status below 400, and not otherwise.
func (s *replica) enter(w http.ResponseWriter, r *http.Request) {
	s.work()
	tx, ok := s.txFrom(r.Context())
	if !ok {
		http.Error(w, "no transaction", http.StatusInternalServerError)
		return
	}
	account, err := accountOf(r)
	if err != nil {
		http.Error(w, "no account", http.StatusBadRequest)
		return
	}
	token := r.Header.Get(httpfence.TokenHeader) // for the record only
	tag, err := tx.Exec(r.Context(), entrySQL, account, token)
	switch {
	case err != nil:
		http.Error(w, "the entry could not be made", http.StatusInternalServerError)
		return
	case tag.RowsAffected() == 0: // deleted since it was looked up
		http.Error(w, "no such account", http.StatusNotFound)
		return
	}
	fmt.Fprintln(w, "entered")
}

// withoutFence is the code without the fence: admission at the door, then a
// transaction that compares nothing.
func (s *replica) withoutFence(next http.Handler) http.Handler {
	return s.fence.Admit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := pgx.BeginFunc(r.Context(), s.pool, func(tx pgx.Tx) error {
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), txKey{}, tx)))
			return nil
		})
		if err != nil {
			claim, _ := guard.ClaimFrom(r.Context())
			panic(fmt.Sprintf("%+v: %v, after the response was sent", claim, err))
		}
	}))
}

type txKey struct{}

func unfencedTx(ctx context.Context) (pgx.Tx, bool) {
	tx, ok := ctx.Value(txKey{}).(pgx.Tx)
	return tx, ok
}
