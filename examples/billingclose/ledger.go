package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"

	"github.com/go-chi/chi/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/httpfence"
	"github.com/fencepost-go/fencepost/sqlfence"
)

// postingBody is what a worker sends to the ledger.
type postingBody struct {
	By    string `json:"by"`
	Cents *int64 `json:"cents"` // nil if missing; zero is a total
}

// upsertPosting books the one posting of a period: a worker that repeats it, after
// a lost response or as a successor, does not book a second one.
const upsertPosting = `INSERT INTO postings (tenant_id, period, cents, posted_by) VALUES ($1, $2, $3, $4)
	ON CONFLICT (tenant_id, period) DO UPDATE SET cents = excluded.cents, posted_by = excluded.posted_by`

// These name both the row and its mark: chi's values may still be escaped. A real
// service takes the tenant from the authenticated identity.
var tenantOf, periodOf = httpfence.ChiParam("tenant"), httpfence.ChiParam("period")

// newLedger is the ledger's HTTP API. With the guard, httpfence refuses stale requests at the door
// and runs the write in a fenced transaction, so that a request already inside when a newer holder
// takes over is refused as well. Marks are in PostgreSQL: they survive a restart, and replicas of the
// ledger share them.
func newLedger(pool *pgxpool.Pool, guarded bool) (http.Handler, error) {
	r := chi.NewRouter()
	const route = "/tenants/{tenant}/periods/{period}/postings"
	if !guarded {
		r.Post(route, func(w http.ResponseWriter, req *http.Request) {
			if err := book(w, req, pool); err != nil {
				http.Error(w, "the posting was not booked", http.StatusInternalServerError)
			}
		})
		return r, nil
	}
	db, err := sqlfence.Pgx(pool, nil)
	if err != nil {
		return nil, err
	}
	resource, err := httpfence.Named(billingClose, httpfence.Bindings{"tenant": tenantOf, "period": periodOf})
	if err != nil {
		return nil, err
	}
	// A service leaves Logger nil: refusals are logged. Here the story shows them.
	fence, err := httpfence.NewTx(db.Transactor(), resource, &httpfence.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	r.Method(http.MethodPost, route, fence.InTxFunc(func(w http.ResponseWriter, req *http.Request) error {
		tx, _ := db.TxFrom(req.Context())
		return book(w, req, tx)
	}))
	return r, nil
}

// book is the handler, on a pool or in a transaction.
func book(w http.ResponseWriter, req *http.Request, on interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}) error {
	posting, err := readPosting(w, req)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return nil
	}
	if _, err := on.Exec(req.Context(), upsertPosting, posting...); err != nil {
		return err
	}
	w.WriteHeader(http.StatusCreated)
	return nil
}

// readPosting returns the posting that req carries, as arguments of upsertPosting.
func readPosting(w http.ResponseWriter, req *http.Request) ([]any, error) {
	tenant, err := tenantOf(req)
	if err != nil {
		return nil, err
	}
	period, err := periodOf(req)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(http.MaxBytesReader(w, req.Body, 1<<16))
	if err != nil {
		return nil, err
	}
	var body postingBody
	if err := json.Unmarshal(text, &body); err != nil {
		return nil, err
	}
	if body.By == "" || strings.Contains(body.By, "\x00") || body.Cents == nil { // a text of PostgreSQL has no NUL
		return nil, errors.New("a posting needs by and cents")
	}
	return []any{tenant, period, *body.Cents, body.By}, nil
}

// postToLedger sends a posting. The error is nil only if it was booked; what the ledger has refused is
// the same error as in its own process.
func postToLedger(ctx context.Context, client *http.Client, ledger, by string, total int64) error {
	body := fmt.Sprintf(`{"by":%q,"cents":%d}`, by, total)
	url := fmt.Sprintf("%s/tenants/%s/periods/%s/postings", ledger, tenant, period)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := httpfence.Do(client, req)
	if err == nil {
		err = resp.Body.Close()
	}
	return err
}
