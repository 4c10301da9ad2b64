package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/guard/proof"
	"github.com/fencepost-go/fencepost/httpfence"
)

// discard is a ResponseWriter that costs nothing.
type discard struct{ h http.Header }

func (d *discard) Header() http.Header         { return d.h }
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }
func (d *discard) WriteHeader(int)             {}

const path = "/acct/acct-%06d/close"

// costHTTP measures a request in process, over loopback, and with a transaction.
func costHTTP(ctx context.Context, e *env, s *Section) error {
	for _, resources := range []int{1, 100_000} {
		if err := costCheck(ctx, e, s, resources); err != nil {
			return err
		}
	}
	if err := costProof(ctx, e, s); err != nil {
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
func byHand(resources int, next http.HandlerFunc) http.HandlerFunc {
	type mark struct {
		token   int64
		leaseID string
	}
	var mu sync.RWMutex
	marks := map[string]mark{}
	for i := range resources {
		marks[fmt.Sprintf("acct-%06d", i)] = mark{5, "b"}
	}
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

// guarded makes the fence with its marks, and a header that it admits. verify
// may be nil.
func guarded(ctx context.Context, resources int, verify func(guard.Claim, *http.Request) error) (*httpfence.Middleware, http.Header, error) {
	store := guard.NewMemory(nil)
	fence, err := httpfence.New(store, httpfence.ChiParam("id"), &httpfence.Options{Logger: slog.New(slog.DiscardHandler), Verify: verify})
	if err != nil {
		return nil, nil, err
	}
	for i := range resources {
		if _, err := store.Admit(ctx, guard.Claim{Resource: fmt.Sprintf("acct-%06d", i), Token: 5, LeaseID: "b"}); err != nil {
			return nil, nil, err
		}
	}
	return fence, http.Header{httpfence.TokenHeader: {"5"}, httpfence.LeaseHeader: {"b"}, httpfence.ResourceHeader: {"acct-000000"}}, nil
}

func costCheck(ctx context.Context, e *env, s *Section, resources int) error {
	ways, err := checks(ctx, resources)
	if err != nil {
		return err
	}
	figures, err := Compare(ctx, Plan{Clients: 1, Block: 15 * time.Millisecond, Rounds: e.rounds(60)},
		ways["bare route"], ways["Check"], ways["Admit"], ways["by hand"])
	if err != nil {
		return err
	}
	s.add(fmt.Sprintf("in process, %s", count(resources, "resource")), figures, perRequest)
	return nil
}

// checks returns the ways to guard a route, called without a connection, each
// for that many resources in turn.
func checks(ctx context.Context, resources int) (map[string]Way, error) {
	fence, header, err := guarded(ctx, resources, nil)
	if err != nil {
		return nil, err
	}
	return map[string]Way{
		"bare route": requests("bare route", header, resources, nil, func(next http.HandlerFunc) http.Handler { return next }),
		"Check": requests("Check", header, resources, nil, func(next http.HandlerFunc) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if _, err := fence.Check(r); err != nil {
					fence.Reject(w, r, err)
					return
				}
				next(w, r)
			})
		}),
		"Admit":   requests("Admit", header, resources, nil, func(next http.HandlerFunc) http.Handler { return fence.Admit(next) }),
		"by hand": requests("by hand", header, resources, nil, func(next http.HandlerFunc) http.Handler { return byHand(resources, next) }),
	}, nil
}

// requests calls a guarded route for each of the resources in turn; each has a
// proof, or none has.
func requests(name string, header http.Header, resources int, proofs []string, guarded func(next http.HandlerFunc) http.Handler) Way {
	const times = 500
	handled, next := 0, 0
	paths, names := make([]string, resources), make([]string, resources)
	for i := range paths {
		paths[i], names[i] = fmt.Sprintf(path, i), fmt.Sprintf("acct-%06d", i)
	}
	router := chi.NewRouter()
	router.Method("POST", "/acct/{id}/close", guarded(func(http.ResponseWriter, *http.Request) { handled++ }))
	r := httptest.NewRequest("POST", paths[0], nil)
	r.Header = header.Clone()
	named, proved := r.Header[httpfence.ResourceHeader], []string{""}
	if proofs != nil {
		r.Header[proof.Header] = proved
	}
	w := &discard{h: http.Header{}}
	return Way{Name: name, Times: times, Do: timed(func(context.Context, int, int) error {
		was := handled
		for range times {
			r.URL.Path, named[0] = paths[next], names[next]
			if proofs != nil {
				proved[0] = proofs[next]
			}
			if next++; next == len(paths) {
				next = 0
			}
			router.ServeHTTP(w, r)
		}
		if handled-was != times {
			return fmt.Errorf("%d of %d were handled", handled-was, times)
		}
		return nil
	})}
}

// costProof verifies a signed claim before Admit: one that was verified before,
// and one that was not, because there are more than the verifier remembers.
func costProof(ctx context.Context, e *env, s *Section) error {
	const resources = 100
	key := proof.NewPrivateKey()
	signer, err := proof.NewSigner(key, nil)
	if err != nil {
		return err
	}
	keys, err := proof.NewKeys(ctx, proof.Static(key.Public()), nil)
	if err != nil {
		return err
	}
	proofs := make([]string, resources)
	for i := range proofs {
		claim := guard.Claim{Resource: fmt.Sprintf("acct-%06d", i), Token: 5, LeaseID: "b"}
		if proofs[i], err = signer.Sign(claim, "bench", time.Now().Add(time.Hour)); err != nil {
			return err
		}
	}
	var ways []Way
	for _, w := range []struct {
		name  string
		cache int // 0: nothing is verified
	}{{"Admit", 0}, {"Admit with a proof, cached", 1 << 14}, {"Admit with a proof, cold", 1}} {
		var verify func(guard.Claim, *http.Request) error
		if w.cache > 0 {
			verifier, err := proof.NewVerifier(keys, &proof.VerifierOptions{Audience: "bench", Cache: w.cache})
			if err != nil {
				return err
			}
			if verify, err = verifier.Hook(nil); err != nil {
				return err
			}
		}
		fence, header, err := guarded(ctx, resources, verify)
		if err != nil {
			return err
		}
		ways = append(ways, requests(w.name, header, resources, proofs, func(next http.HandlerFunc) http.Handler { return fence.Admit(next) }))
	}
	figures, err := Compare(ctx, Plan{Clients: 1, Block: 20 * time.Millisecond, Rounds: e.rounds(40)}, ways...)
	if err != nil {
		return err
	}
	s.add(fmt.Sprintf("in process, %s", count(resources, "resource")), figures, perRequest)
	return nil
}

func perRequest(f Figure) map[string]float64 { return map[string]float64{"ns a request": 1e9 / f.Rate} }

// costLoopback sends whole requests, one after the other, over one connection.
func costLoopback(ctx context.Context, e *env, s *Section) error {
	fence, header, err := guarded(ctx, 1, nil)
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
			r, err := http.NewRequestWithContext(ctx, "POST", server.URL+fmt.Sprintf(path, 0), nil)
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
		s.add("over loopback", figures, perRequest)
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
	fence, err := httpfence.New(x.db, httpfence.ChiParam("id"), &httpfence.Options{TokenOnly: true, InsecureAnyResource: true, Transactor: x.db.Transactor()})
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
		s.add("handler, "+setting{durable: durable, clients: 1}.String(), figures, perRequest)
	}
	return err
}
