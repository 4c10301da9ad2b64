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
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"
)

const schema = `
CREATE TABLE accounts (id text PRIMARY KEY, balance bigint NOT NULL DEFAULT 0);
INSERT INTO accounts (id) VALUES ('acme')`

// accountOf returns the account's ID, for both the mark and the row: chi's value
// may still be escaped. The lease client also uses accounts to name its leases.
var (
	accounts  = guard.Must(guard.NewTemplate("account:{id}"))
	accountOf = httpfence.ChiParam("id")
)

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
	if err := sqladmin.Pgx(pool).Migrate(ctx); err != nil {
		return nil, err
	}
	if _, err := pool.Exec(ctx, schema); err != nil {
		return nil, err
	}
	// db is also the store: the door and the write, on all replicas, compare
	// with the same mark.
	resource, err := httpfence.Named(accounts, httpfence.Bindings{"id": accountOf})
	if err != nil {
		return nil, err
	}
	fence, err := httpfence.New(db, resource, nil)
	if err != nil {
		return nil, err
	}
	return &service{db, pool, fence, func(*http.Request) {}}, nil
}

func (s *service) handler() http.Handler {
	r := chi.NewRouter()
	r.Get("/accounts/{id}", s.read)
	// Requests for missing accounts get their response before the fence, or every
	// made-up name would get a mark. So is a wrong method, because With runs
	// after the routing.
	known := r.With(s.mustExist)
	known.With(s.fence.Admit).Post("/accounts/{id}/deposits/{cents}", s.deposit)
	known.Post("/accounts/{id}/raise", s.fence.Raise) // a new holder calls this before it reads
	return r
}

func (s *service) mustExist(next http.Handler) http.Handler {
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
	account, err := accountOf(r)
	if err != nil {
		s.fence.Reject(w, r, err)
		return
	}
	var balance int64
	err = s.db.InTx(r.Context(), claim, func(ctx context.Context, tx pgx.Tx) (err error) {
		balance, err = deposit(ctx, tx, account, cents)
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
