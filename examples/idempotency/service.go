package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/go-chi/chi/v5"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/httpfence"
	"github.com/fencepost-go/fencepost/sqlfence"
)

// service issues invoices, each once.
type service struct {
	pool  *pgxpool.Pool
	db    *sqlfence.DB[pgx.Tx]
	fence *httpfence.Middleware
	// tax stands for a slow call to another service, made outside any
	// transaction, between reserving the key and the work.
	tax func(ctx context.Context, cents int64) (int64, error)
}

// handler checks, in this order and for these reasons:
//
//  1. authentication: nobody else may learn that a key, a period or a mark is
//     there; it also says whose key this is;
//  2. not found: a key of a period that is gone must not be taken for it;
//  3. replay look-up: a finished request gets its stored response, whatever the
//     token is by now, because nothing is written;
//  4. fence: a stale holder is stopped here, before it touches a key;
//  5. If-Match and the handler: inside the fenced transaction, with the key.
func (s *service) handler() http.Handler {
	router := chi.NewRouter()
	router.With(authenticate, s.mustExist, s.replayed, s.fence.Admit).Post("/periods/{period}/invoices", s.issue)
	return router
}

type contextKey int

const (
	tenantKey contextKey = iota
	requestKey
)

// tokens are the credentials of this example.
var tokens = map[string]string{"Bearer secret-1": "tenant_1", "Bearer secret-2": "tenant_2"}

func authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tenant, ok := tokens[r.Header.Get("Authorization")]
		if !ok {
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), tenantKey, tenant)))
	})
}

func tenantOf(r *http.Request) (string, error) {
	tenant, ok := r.Context().Value(tenantKey).(string)
	if !ok {
		return "", errors.New("not authenticated")
	}
	return tenant, nil
}

var (
	invoicesOf = guard.Must(guard.NewTemplate("{tenant}:invoices:{period}"))
	period     = httpfence.ChiParam("period")
)

func (s *service) mustExist(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tenant, _ := tenantOf(r)
		name, err := period(r)
		found := false
		if err == nil {
			err = s.pool.QueryRow(r.Context(), `SELECT EXISTS (SELECT FROM periods WHERE tenant = $1 AND period = $2)`, tenant, name).Scan(&found)
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

// request is a request, read once.
type request struct {
	key   string
	print []byte
	body  []byte
}

func (s *service) replayed(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tenant, _ := tenantOf(r)
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<16))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		keys := r.Header.Values("Idempotency-Key")
		if len(keys) != 1 || keys[0] == "" || len(keys[0]) > 128 {
			http.Error(w, "send one Idempotency-Key", http.StatusBadRequest)
			return
		}
		req := &request{keys[0], fingerprint(r.Method, r.URL.EscapedPath(), r.Header.Get("If-Match"), body), body}
		answer, err := replay(r.Context(), s.pool, tenant, req.key, req.print)
		switch {
		case err != nil:
			s.refuse(w, r, err)
		case answer != nil:
			w.Header().Set("Idempotency-Replayed", "true")
			write(w, *answer)
		default:
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), requestKey, req)))
		}
	})
}

// issue is the work: one fenced transaction that reserves the key, the call
// outside, one fenced transaction that writes the invoice and the response.
func (s *service) issue(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	claim, _ := guard.ClaimFrom(ctx)
	req, _ := ctx.Value(requestKey).(*request)
	tenant, _ := tenantOf(r)
	name, _ := period(r)
	var in struct{ Cents int64 }
	if err := json.Unmarshal(req.body, &in); err != nil || in.Cents <= 0 {
		http.Error(w, "send cents", http.StatusBadRequest)
		return
	}
	var attempt int
	err := s.db.InTx(ctx, claim, func(ctx context.Context, tx pgx.Tx) (err error) {
		attempt, err = reserve(ctx, tx, tenant, req.key, req.print, claim)
		return err
	})
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	var answer saved
	tax, err := s.tax(ctx, in.Cents)
	if err == nil {
		err = s.db.InTx(ctx, claim, func(ctx context.Context, tx pgx.Tx) error {
			answer, err = insert(ctx, tx, tenant, name, r.Header.Get("If-Match"), in.Cents+tax, claim)
			if err != nil {
				return err
			}
			return finish(ctx, tx, tenant, req.key, attempt, answer)
		})
	}
	if err == nil {
		write(w, answer)
		return
	}
	// This holder may be stale by now, and then leaves the key to its
	// successor; the next look-up resolves an unknown outcome.
	_ = s.db.InTx(context.WithoutCancel(ctx), claim, func(ctx context.Context, tx pgx.Tx) error {
		return giveUp(ctx, tx, tenant, req.key, attempt)
	})
	s.refuse(w, r, err)
}

var errChanged = errors.New("the period has changed") // 412, and not a matter of tokens

func insert(ctx context.Context, tx pgx.Tx, tenant, period, ifMatch string, cents int64, claim guard.Claim) (saved, error) {
	var version int
	err := tx.QueryRow(ctx, `SELECT version FROM periods WHERE tenant = $1 AND period = $2 FOR UPDATE`, tenant, period).Scan(&version)
	if err != nil {
		return saved{}, err
	}
	if ifMatch != "" && ifMatch != strconv.Quote(strconv.Itoa(version)) {
		return saved{}, errChanged
	}
	var id int64
	err = tx.QueryRow(ctx, `WITH p AS (UPDATE periods SET version = version + 1 WHERE tenant = $1 AND period = $2)
INSERT INTO invoices (tenant, period, cents, token) VALUES ($1, $2, $3, $4) RETURNING id`, tenant, period, cents, int64(claim.Token)).Scan(&id)
	return saved{http.StatusCreated, fmt.Sprintf("invoice %d over %d cents\n", id, cents)}, err
}

// refuse sends responses that are not stored. The fence responds all other errors.
func (s *service) refuse(w http.ResponseWriter, r *http.Request, err error) {
	switch {
	case errors.Is(err, errReused):
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
	case errors.Is(err, errBusy):
		w.Header().Set("Retry-After", "1")
		http.Error(w, err.Error(), http.StatusConflict)
	case errors.Is(err, errChanged):
		http.Error(w, err.Error(), http.StatusPreconditionFailed)
	default:
		s.fence.Reject(w, r, err)
	}
}

func write(w http.ResponseWriter, answer saved) {
	w.WriteHeader(answer.Status)
	_, _ = io.Copy(w, strings.NewReader(answer.Body))
}
