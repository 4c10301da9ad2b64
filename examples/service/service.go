package main

import (
	"context"
	"crypto/sha256"
	_ "embed"
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
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"
)

//go:embed schema.sql
var schema string

// invoicesOf names what is fenced, also for the workers that hold the leases. The tenant
// comes from who is authenticated, never from the request.
var (
	invoicesOf = guard.Must(guard.NewTemplate("{tenant}:invoices:{period}"))
	periodOf   = httpfence.ChiParam("period")
)

// service is one replica of a service that issues invoices.
type service struct {
	pool     *pgxpool.Pool
	db       *sqlfence.DB[pgx.Tx]
	fence    *httpfence.TxMiddleware
	unfenced bool
	// slow stands for what takes time while a request is handled, such as a call of
	// another service.
	slow func(r *http.Request)
}

func newService(ctx context.Context, pool *pgxpool.Pool) (*service, error) {
	db, err := sqlfence.Pgx(pool, nil)
	if err != nil {
		return nil, err
	}
	if err := sqladmin.Pgx(pool).Migrate(ctx); err != nil {
		return nil, err
	}
	resource, err := httpfence.Named(invoicesOf, httpfence.Bindings{"tenant": tenantOf, "period": periodOf})
	if err != nil {
		return nil, err
	}
	// The marks and the transactions are in one database: a resource has one mark.
	fence, err := httpfence.NewTx(db.Transactor(), resource, nil)
	if err != nil {
		return nil, err
	}
	return &service{pool: pool, db: db, fence: fence, slow: func(*http.Request) {}}, nil
}

// handler checks, in this order and for these reasons:
//
//  1. authentication: nobody else may learn that a key, a period or a mark is there; it
//     also says whose key this is;
//  2. not found: a made-up name would get a mark, which stays even if its work is rolled
//     back, and a key of a period that is gone must not be taken for it;
//  3. the replay: a finished request gets its stored response, whatever the token is by
//     now, because nothing is written;
//  4. the fence: a stale holder is stopped here, before it touches a key;
//  5. If-Match and the work: inside the fenced transaction, with the key.
func (s *service) handler() http.Handler {
	r := chi.NewRouter()
	known := r.With(authenticate, s.mustExist)
	known.With(s.replayed).Method(http.MethodPost, "/periods/{period}/invoices", s.inTx(s.issue))
	known.With(s.fence.Admit).Post("/periods/{period}/report", s.report)
	known.Post("/periods/{period}/raise", s.fence.Raise) // a new holder calls this before it reads
	return r
}

type contextKey int

const (
	tenantKey contextKey = iota
	txKey
)

// credentials are those of this example.
var credentials = map[string]string{"Bearer secret-1": "tenant_1", "Bearer secret-2": "tenant_2"}

func authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tenant, ok := credentials[r.Header.Get("Authorization")]
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

// names returns the request's tenant and period, for the mark and the rows alike: chi's own
// value may still be escaped.
func names(r *http.Request) (tenant, period string, err error) {
	if tenant, err = tenantOf(r); err == nil {
		period, err = periodOf(r)
	}
	return tenant, period, err
}

func (s *service) mustExist(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		found := false
		tenant, period, err := names(r)
		if err == nil {
			err = s.pool.QueryRow(r.Context(), `SELECT EXISTS (SELECT FROM periods WHERE tenant = $1 AND period = $2)`, tenant, period).Scan(&found)
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

// keyOf returns the request's key and what identifies the request. That excludes the token: a
// successor that repeats its predecessor's request with the same key asks for the same.
func keyOf(r *http.Request) (key string, print []byte, err error) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<16))
	r.Body = io.NopCloser(strings.NewReader(string(body)))
	if key = r.Header.Get("Idempotency-Key"); key == "" || len(key) > 128 {
		err = errors.Join(err, errors.New("send an Idempotency-Key"))
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q %q", r.Method, r.URL.EscapedPath(), r.Header.Get("If-Match"), body))
	return key, sum[:], err
}

// replayed sends the stored response of a finished request.
func (s *service) replayed(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tenant, _ := tenantOf(r)
		key, print, err := keyOf(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		var stored []byte
		var status int
		var body string
		err = s.pool.QueryRow(r.Context(), `SELECT fingerprint, status, body FROM idempotency_keys WHERE tenant = $1 AND key = $2`,
			tenant, key).Scan(&stored, &status, &body)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			next.ServeHTTP(w, r)
		case err != nil:
			s.fence.Reject(w, r, err)
		case string(stored) != string(print):
			http.Error(w, "the key was used for another request", http.StatusUnprocessableEntity)
		default:
			w.Header().Set("Idempotency-Replayed", "true")
			w.WriteHeader(status)
			fmt.Fprint(w, body)
		}
	})
}

// issue is the work. It runs in a fenced transaction, knows nothing of tokens but for the
// record, and takes effect if it returns nil with a status below 400. The key is stored with
// the work or not at all. A second request with the key waits for the first one's commit, gets
// 409, and is replayed when it comes again.
func (s *service) issue(w http.ResponseWriter, r *http.Request) error {
	ctx := r.Context()
	s.slow(r)
	tenant, period, err := names(r)
	if err != nil {
		return err
	}
	tx := s.txOf(ctx)
	key, print, err := keyOf(r)
	if err != nil {
		return err
	}
	body, _ := io.ReadAll(r.Body)
	cents, err := strconv.ParseInt(string(body), 10, 32)
	if err != nil || cents <= 0 {
		http.Error(w, "send cents", http.StatusBadRequest)
		return nil
	}
	var version int
	if err := tx.QueryRow(ctx, `SELECT version FROM periods WHERE tenant = $1 AND period = $2 FOR UPDATE`, tenant, period).Scan(&version); err != nil {
		return err
	}
	if want := r.Header.Get("If-Match"); want != "" && want != strconv.Quote(strconv.Itoa(version)) {
		http.Error(w, "the period has changed", http.StatusPreconditionFailed)
		return nil
	}
	var id int64
	err = tx.QueryRow(ctx, `WITH p AS (UPDATE periods SET version = version + 1 WHERE tenant = $1 AND period = $2)
		INSERT INTO invoices (tenant, period, cents, token) VALUES ($1, $2, $3, $4) RETURNING id`,
		tenant, period, cents, r.Header.Get(httpfence.TokenHeader)).Scan(&id)
	if err != nil {
		return err
	}
	answer := fmt.Sprintf("invoice %d over %d cents\n", id, cents)
	tag, err := tx.Exec(ctx, `INSERT INTO idempotency_keys VALUES ($1, $2, $3, 201, $4) ON CONFLICT DO NOTHING`, tenant, key, print, answer)
	switch {
	case err != nil:
		return err
	case tag.RowsAffected() == 0:
		w.Header().Set("Retry-After", "1")
		http.Error(w, "the key was used a moment ago", http.StatusConflict)
	default:
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, answer)
	}
	return nil
}

// report is for work that no transaction should wait for: the claim is admitted at the door,
// the slow part runs outside, and the write is fenced. Admission alone would not stop this
// request if a newer holder came in between.
func (s *service) report(w http.ResponseWriter, r *http.Request) {
	s.slow(r)
	claim, _ := guard.ClaimFrom(r.Context())
	err := s.db.InTx(r.Context(), claim, func(ctx context.Context, tx pgx.Tx) error { return s.touch(ctx, tx, r) })
	if err != nil {
		s.fence.Reject(w, r, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// touch is what report writes.
func (s *service) touch(ctx context.Context, tx pgx.Tx, r *http.Request) error {
	tenant, period, err := names(r)
	if err == nil {
		_, err = tx.Exec(ctx, `UPDATE periods SET version = version + 1 WHERE tenant = $1 AND period = $2`, tenant, period)
	}
	return err
}

// inTx is the fence around a handler or, to show the damage, what stands there without one:
// admission at the door, then a transaction that compares nothing.
func (s *service) inTx(handle func(http.ResponseWriter, *http.Request) error) http.Handler {
	if !s.unfenced {
		return s.fence.InTxFunc(handle)
	}
	return s.fence.Admit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := pgx.BeginFunc(r.Context(), s.pool, func(tx pgx.Tx) error {
			return handle(w, r.WithContext(context.WithValue(r.Context(), txKey, tx)))
		})
		if err != nil {
			panic(fmt.Sprint(err, ", perhaps after the response was sent"))
		}
	}))
}

func (s *service) txOf(ctx context.Context) pgx.Tx {
	if tx, ok := s.db.TxFrom(ctx); ok {
		return tx
	}
	tx, _ := ctx.Value(txKey).(pgx.Tx)
	return tx
}
