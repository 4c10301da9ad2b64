package main

import (
	"context"
	"fmt"
	"net/http"
	"strconv"

	"github.com/go-chi/chi/v5"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/httpfence"
	"github.com/fencepost-go/fencepost/sqlfence"
)

const schema = `
CREATE TABLE accounts (id text PRIMARY KEY, balance bigint NOT NULL DEFAULT 0);
INSERT INTO accounts (id) VALUES ('acme')`

// accountOf names the account, for the mark and for the row alike: what chi gives
// may still be escaped.
var accountOf = httpfence.ChiParam("id")

type service struct {
	db      *sqlfence.DB[pgx.Tx]
	pool    *pgxpool.Pool
	fence   *httpfence.Middleware
	between func(r *http.Request) // between admission and the write; tests pause here
}

func newService(ctx context.Context, pool *pgxpool.Pool) (*service, error) {
	db, err := sqlfence.Pgx(pool, nil)
	if err != nil {
		return nil, err
	}
	if err := db.Migrate(ctx); err != nil {
		return nil, err
	}
	if _, err := pool.Exec(ctx, schema); err != nil {
		return nil, err
	}
	// db is the store too: the door and the write compare with one mark, and
	// all replicas with the same.
	fence := httpfence.New(db, accountOf, nil)
	return &service{db, pool, fence, func(*http.Request) {}}, nil
}

func (s *service) handler() http.Handler {
	r := chi.NewRouter()
	r.Get("/accounts/{id}", s.read)
	r.With(s.fence.Admit).Post("/accounts/{id}/deposits/{cents}", s.deposit)
	r.Post("/accounts/{id}/raise", s.fence.Raise) // a new holder calls this before it reads
	return r
}

func (s *service) deposit(w http.ResponseWriter, r *http.Request) {
	cents, err := strconv.ParseInt(chi.URLParam(r, "cents"), 10, 32)
	if err != nil {
		http.Error(w, "cents must be a number", http.StatusBadRequest)
		return
	}
	s.between(r)
	// Admission does not stop this request if a newer holder comes now. The
	// fenced transaction does.
	claim, _ := guard.ClaimFrom(r.Context())
	var balance int64
	err = s.db.InTx(r.Context(), claim, func(ctx context.Context, tx pgx.Tx) (err error) {
		balance, err = deposit(ctx, tx, claim.Resource, cents)
		return err
	})
	if err != nil {
		s.fence.Reject(w, r, err)
		return
	}
	fmt.Fprintf(w, "balance %d", balance)
}

func deposit(ctx context.Context, tx pgx.Tx, account string, cents int64) (balance int64, err error) {
	err = tx.QueryRow(ctx, `UPDATE accounts SET balance = balance + $2 WHERE id = $1 RETURNING balance`, account, cents).Scan(&balance)
	if err == pgx.ErrNoRows {
		err = guard.ErrNotFound
	}
	return balance, err
}

func (s *service) read(w http.ResponseWriter, r *http.Request) {
	var balance int64
	account, err := accountOf(r)
	if err == nil {
		err = s.pool.QueryRow(r.Context(), `SELECT balance FROM accounts WHERE id = $1`, account).Scan(&balance)
	}
	if err != nil {
		http.Error(w, "no such account", http.StatusNotFound)
		return
	}
	fmt.Fprintf(w, "balance %d", balance)
}
