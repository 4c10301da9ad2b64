package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/httpfence"
)

// discard is a ResponseWriter that costs nothing.
type discard struct{ h http.Header }

func (d *discard) Header() http.Header         { return d.h }
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }
func (d *discard) WriteHeader(int)             {}

const (
	account = "acct-000000"
	path    = "/acct/" + account + "/close"
)

// costHTTP measures a request in process, over loopback, and with a transaction.
func costHTTP(ctx context.Context, e *env, s *Section) error {
	if err := costCheck(ctx, e, s); err != nil {
		return err
	}
	if err := costLoopback(ctx, e, s); err != nil {
		return err
	}
	for _, durable := range []bool{true, false} {
		if err := costHandler(ctx, e, s, durable); err != nil {
			return err
		}
	}
	return nil
}

// byHand is the minimal code that compares a claim with a mark.
func byHand(next http.HandlerFunc) http.HandlerFunc {
	type mark struct {
		token   int64
		leaseID string
	}
	var mu sync.RWMutex
	marks := map[string]mark{account: {5, "b"}}
	return func(w http.ResponseWriter, r *http.Request) {
		token, lease := r.Header[httpfence.TokenHeader], r.Header[httpfence.LeaseHeader]
		if len(token) != 1 || len(lease) != 1 {
			w.WriteHeader(http.StatusPreconditionRequired)
			return
		}
		t, err := strconv.ParseInt(token[0], 10, 64)
		mu.RLock()
		m, ok := marks[chi.URLParam(r, "id")]
		mu.RUnlock()
		if err != nil || !ok || t < m.token || t == m.token && lease[0] != m.leaseID {
			w.WriteHeader(http.StatusPreconditionFailed)
			return
		}
		next(w, r)
	}
}

// guarded makes the fence with its mark, and a header that it admits.
func guarded(ctx context.Context) (*httpfence.Middleware, http.Header, error) {
	store := guard.NewMemory(nil)
	fence, err := httpfence.New(store, httpfence.ChiParam("id"), nil)
	if err == nil {
		_, err = store.Admit(ctx, guard.Claim{Resource: account, Token: 5, LeaseID: "b"})
	}
	return fence, http.Header{httpfence.TokenHeader: {"5"}, httpfence.LeaseHeader: {"b"}, httpfence.ResourceHeader: {account}}, err
}

// costCheck calls a guarded route without a connection.
func costCheck(ctx context.Context, e *env, s *Section) error {
	fence, header, err := guarded(ctx)
	if err != nil {
		return err
	}
	way := func(name string, guarded func(next http.HandlerFunc) http.Handler) Way {
		const times = 500
		handled := 0
		router := chi.NewRouter()
		router.Method("POST", "/acct/{id}/close", guarded(func(http.ResponseWriter, *http.Request) { handled++ }))
		r := httptest.NewRequest("POST", path, nil)
		r.Header = header
		w := &discard{h: http.Header{}}
		return Way{Name: name, Times: times, Do: timed(func(context.Context, int, int) error {
			was := handled
			for range times {
				router.ServeHTTP(w, r)
			}
			if handled-was != times {
				return fmt.Errorf("%d of %d were handled", handled-was, times)
			}
			return nil
		})}
	}
	figures, err := Compare(ctx, Plan{Clients: 1, Block: 15 * time.Millisecond, Rounds: e.rounds(60)},
		way("bare route", func(next http.HandlerFunc) http.Handler { return next }),
		way("Check", func(next http.HandlerFunc) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if _, err := fence.Check(r); err != nil {
					fence.Reject(w, r, err)
					return
				}
				next(w, r)
			})
		}),
		way("Admit", func(next http.HandlerFunc) http.Handler { return fence.Admit(next) }),
		way("by hand", func(next http.HandlerFunc) http.Handler { return byHand(next) }))
	if err == nil {
		s.add("in process", figures)
	}
	return err
}

// costLoopback sends whole requests, one after the other, over one connection.
func costLoopback(ctx context.Context, e *env, s *Section) error {
	fence, header, err := guarded(ctx)
	if err != nil {
		return err
	}
	done := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }
	way := func(name string, h http.Handler) Way {
		router := chi.NewRouter()
		router.Method("POST", "/acct/{id}/close", h)
		server := httptest.NewServer(router)
		e.later(server.Close)
		client := server.Client()
		return Way{Name: name, Do: timed(func(ctx context.Context, _, _ int) error {
			r, err := http.NewRequestWithContext(ctx, "POST", server.URL+path, nil)
			if err != nil {
				return err
			}
			r.Header = header
			return send(client, r, http.StatusNoContent)
		})}
	}
	figures, err := Compare(ctx, Plan{Clients: 1, Block: 60 * time.Millisecond, Rounds: e.rounds(12)},
		way("bare route", http.HandlerFunc(done)), way("Admit", fence.Admit(http.HandlerFunc(done))))
	if err == nil {
		s.add("over loopback", figures)
	}
	return err
}

func send(client *http.Client, r *http.Request, want int) error {
	resp, err := client.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != want {
		text, _ := io.ReadAll(resp.Body)
		return fmt.Errorf("status %d: %.200s", resp.StatusCode, text)
	}
	return nil
}

// costHandler is a handler with a transaction, without a connection.
func costHandler(ctx context.Context, e *env, s *Section, durable bool) error {
	x, err := e.scene(ctx, durable, 0, guard.SameOrNewer)
	if err != nil {
		return err
	}
	fence, err := httpfence.NewTx(x.db.Transactor(), httpfence.ChiParam("id"), &httpfence.Options{TokenOnly: true, InsecureAnyResource: true})
	if err != nil {
		return err
	}
	if _, err := x.db.Admit(ctx, guard.Claim{Resource: "0", Token: 7}); err != nil {
		return err
	}
	answer := func(w http.ResponseWriter, err error) {
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}
	router := chi.NewRouter()
	router.Post("/own/{id}", func(w http.ResponseWriter, r *http.Request) {
		answer(w, inTx(r.Context(), x.pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(r.Context(), update, 0, 1)
			return err
		}))
	})
	router.With(fence.InTx).Post("/fenced/{id}", func(w http.ResponseWriter, r *http.Request) {
		tx, _ := x.db.TxFrom(r.Context())
		_, err := tx.Exec(r.Context(), update, 0, 1)
		answer(w, err)
	})
	way := func(name, path string) Way {
		return Way{Name: name, Do: timed(func(ctx context.Context, _, _ int) error {
			r := httptest.NewRequestWithContext(ctx, "POST", path, nil)
			r.Header.Set(httpfence.TokenHeader, "7")
			w := httptest.NewRecorder()
			router.ServeHTTP(w, r)
			if w.Code != http.StatusNoContent {
				return fmt.Errorf("status %d: %.200s", w.Code, w.Body)
			}
			return nil
		})}
	}
	figures, err := Compare(ctx, Plan{Clients: 1, Block: 60 * time.Millisecond, Rounds: e.rounds(16)}, way("own transaction", "/own/0"), way("InTx", "/fenced/0"))
	if err == nil {
		s.add("handler, "+setting{durable: durable, clients: 1}.String(), figures)
	}
	return err
}
