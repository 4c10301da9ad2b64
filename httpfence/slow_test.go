package httpfence_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/httpfence"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/sqlfence"
)

// TestSlowBodies: eight senders that never finish their bodies, on a pool of
// four connections. They hold none: other resources are answered at once, and
// so is the successor's raise. The control lets the bodies stream, and then
// nobody gets a connection: 503 after Options.MaxWait.
func TestSlowBodies(t *testing.T) {
	for _, streams := range []bool{false, true} {
		t.Run(fmt.Sprintf("streams=%v", streams), func(t *testing.T) {
			config, err := pgxpool.ParseConfig(pgtest.Database(t))
			if err != nil {
				t.Fatal(err)
			}
			config.MaxConns = 4
			pool, err := pgxpool.NewWithConfig(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
			db, err := sqlfence.Pgx(pool, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := db.Migrate(t.Context()); err != nil {
				t.Fatal(err)
			}
			fence, err := httpfence.New(db, httpfence.ChiParam("id"), &httpfence.Options{
				Transactor: db.Transactor(), InsecureStreamRequest: streams, TokenOnly: true, InsecureAnyResource: true,
				MaxWait: 500 * time.Millisecond, RaiseWait: 500 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				t.Fatal(err)
			}
			reading := make(chan struct{}, 8) // by the handler or, in front of it, by InTx
			router := chi.NewRouter()
			router.With(fence.InTx).Post("/accounts/{id}/close", func(w http.ResponseWriter, r *http.Request) {
				if streams && chi.URLParam(r, "id") == "slow" {
					reading <- struct{}{}
				}
				if _, err := io.Copy(io.Discard, r.Body); err != nil {
					w.WriteHeader(http.StatusBadRequest)
				}
			})
			router.With(fence.Admit).Post("/accounts/{id}/admit", func(http.ResponseWriter, *http.Request) {})
			router.Post("/accounts/{id}/raise", fence.Raise)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if !streams && r.Header.Get("X-Slow") != "" {
					r.Body = told{r.Body, reading}
				}
				router.ServeHTTP(w, r)
			}))
			defer server.Close()
			if _, err := db.Admit(t.Context(), guard.Claim{Resource: "slow", Token: 10}); err != nil {
				t.Fatal(err)
			}
			senders := 8
			if streams {
				senders = 4 // that is all there is
			}
			for range senders {
				conn, err := net.Dial("tcp", server.Listener.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = conn.Close() }()
				_, _ = io.WriteString(conn, "POST /accounts/slow/close HTTP/1.1\r\nHost: a.test\r\nX-Slow: 1\r\nX-Fencing-Token: 10\r\nContent-Length: 5\r\n\r\n12")
			}
			for range senders {
				<-reading
			}
			ask := func(path, token string) (int, time.Duration) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // ends a hang
				defer cancel()
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+path, strings.NewReader("12345"))
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set(httpfence.TokenHeader, token)
				start := time.Now()
				resp, err := http.DefaultTransport.RoundTrip(req)
				if err != nil {
					t.Fatalf("%s: %v", path, err)
				}
				defer func() { _ = resp.Body.Close() }()
				if resp.StatusCode == http.StatusServiceUnavailable && resp.Header.Get("Retry-After") == "" {
					t.Errorf("%s: 503 without Retry-After", path)
				}
				return resp.StatusCode, time.Since(start)
			}
			for _, c := range []struct {
				path, token string
				status      int
			}{
				{"/accounts/other/close", "1", 200}, {"/accounts/other/admit", "2", 200}, {"/accounts/third/raise", "1", 204}, {"/accounts/slow/raise", "11", 204},
			} {
				status, took := ask(c.path, c.token)
				if want := map[bool]int{false: c.status, true: 503}[streams]; status != want {
					t.Errorf("%s: %d after %v, want %d", c.path, status, took, want)
				}
			}
			if n := pool.Stat().AcquiredConns(); (n == 0) == streams {
				t.Errorf("%d connections in use", n)
			}
		})
	}
}

// told says when its body is read.
type told struct {
	io.ReadCloser
	reading chan struct{}
}

func (b told) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n == 2 {
		b.reading <- struct{}{}
	}
	return n, err
}
