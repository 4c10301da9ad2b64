package httpfence_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/httpfence"
	"github.com/fencepost-go/fencepost/sqlfence"
)

// TestP2RaiseEndpoint: a new holder that raises before it reads loses no
// update of an older one that was still writing, because the raise waits for
// it. The control raises a mark that is unrelated to the transaction.
func TestP2RaiseEndpoint(t *testing.T) {
	for _, c := range []struct {
		name string
		lost bool
	}{
		{"the transaction's own mark", false},
		{"control: another mark", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := newReplica(t, ledger(t))
			fence := p.fence()
			raising := fence.Middleware
			if c.lost {
				raising = guard.Must(httpfence.New(guard.NewMemory(nil), httpfence.ChiParam("id"), nil))
			}
			inside, proceed := make(chan struct{}), make(chan struct{})
			router := chi.NewRouter()
			router.With(fence.InTx).Post("/accounts/{id}/close", func(w http.ResponseWriter, r *http.Request) {
				close(inside)
				<-proceed
				tx, _ := p.db.TxFrom(r.Context())
				if _, err := tx.Exec(r.Context(), writeSQL, 10); err != nil {
					fence.Reject(w, r, err)
					return
				}
				w.WriteHeader(http.StatusOK)
			})
			router.Post("/accounts/{id}/raise", raising.Raise)

			old := make(chan int)
			go func() { old <- send(router, "POST", "/accounts/acme/close", "10").StatusCode }()
			<-inside
			raised := make(chan int)
			go func() { raised <- send(router, "POST", "/accounts/acme/raise", "11").StatusCode }()
			if c.lost { // the raise does not wait: the new holder would read now
				if status := <-raised; status != http.StatusNoContent {
					t.Errorf("raise: %d", status)
				}
			}
			if !c.lost {
				untilBlocked(t, p)
				select {
				case status := <-raised:
					t.Errorf("the raise did not wait: %d", status)
				default:
				}
			}
			var before, after int64
			read := func(n *int64) {
				if err := p.pool.QueryRow(t.Context(), "SELECT seq FROM accounts").Scan(n); err != nil {
					t.Error(err)
				}
			}
			if c.lost {
				read(&before)
			}
			close(proceed)
			if status := <-old; status != http.StatusOK {
				t.Errorf("the old holder, which was first: %d", status)
			}
			if !c.lost {
				if status := <-raised; status != http.StatusNoContent {
					t.Errorf("raise: %d", status)
				}
				read(&before)
			}
			if read(&after); (before != after) != c.lost {
				t.Errorf("the new holder read %d, and the account is at %d", before, after)
			}
		})
	}
}

// untilBlocked returns when a session of the database waits for a lock.
func untilBlocked(t *testing.T, p *replica) {
	t.Helper()
	const waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		var n int
		if err := p.pool.QueryRow(t.Context(), waits).Scan(&n); err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("nobody waits for a lock: the raise does not wait")
		}
	}
}

// TestInTxOfAClientThatIsGone: over a socket and on PostgreSQL, whatever ends a
// request after its handler has written leaves none of the work, no connection
// in use, and no lock that the successor would wait for. The undisturbed
// handler is the control: its work is there.
func TestInTxOfAClientThatIsGone(t *testing.T) {
	t.Parallel()
	url := ledger(t)
	p := newReplica(t, url)
	writes := func() (n int) {
		if err := p.pool.QueryRow(context.Background(), "SELECT count(*) FROM writes").Scan(&n); err != nil {
			t.Error(err)
		}
		return n
	}
	token := guard.Token(0)
	for _, c := range []struct {
		name      string
		end       func(hangUp func(), r *http.Request) // in the handler, after the write
		committed int
	}{
		{"control: nothing happens", func(func(), *http.Request) {}, 1},
		{"the client hangs up, and the handler goes on", func(hangUp func(), r *http.Request) {
			hangUp()
			<-r.Context().Done()
		}, 0},
		{"http.ErrAbortHandler", func(func(), *http.Request) { panic(http.ErrAbortHandler) }, 0},
		{"a panic", func(func(), *http.Request) { panic("a bug of the handler's") }, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := writes()
			token++
			ctx, hangUp := context.WithCancel(guard.WithClaim(t.Context(), guard.Claim{Resource: "acme", Token: token}))
			defer hangUp()
			ended := make(chan struct{})
			fence := p.fence()
			guarded := route(fence.InTx, func(w http.ResponseWriter, r *http.Request) {
				tx, _ := p.db.TxFrom(r.Context())
				if _, err := tx.Exec(r.Context(), writeSQL, int64(token)); err != nil {
					t.Errorf("write: %v", err)
				}
				w.WriteHeader(http.StatusOK)
				c.end(hangUp, r)
			})
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				defer close(ended)
				guarded.ServeHTTP(w, r)
			}))
			server.Config.ErrorLog = log.New(io.Discard, "", 0) // panics are expected
			server.Start()
			defer server.Close()
			client := &http.Client{Transport: guard.Must(httpfence.NewTransport(&http.Transport{DisableKeepAlives: true}, []string{server.URL}, nil))}
			err := post(ctx, client, server.URL+"/accounts/acme/close")
			if (err == nil) != (c.committed == 1) {
				t.Errorf("the client was told %v", err)
			}
			<-ended
			if n := writes() - before; n != c.committed {
				t.Errorf("%d writes are there, want %d", n, c.committed)
			}
			// A leak stays; a connection that is only closed later does not.
			for deadline := time.Now().Add(10 * time.Second); p.pool.Stat().AcquiredConns() != 0; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("%d connections are still in use", p.pool.Stat().AcquiredConns())
				}
			}
			token++
			limited, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			if err := p.db.Raise(limited, guard.Claim{Resource: "acme", Token: token}); err != nil {
				t.Errorf("the successor's raise: %v", err)
			}
		})
	}
}

// TestSlowBodies: eight senders that never finish their bodies, on a pool of
// four connections. They hold none: requests for other resources are answered
// at once, and so is the successor's raise. In the control the handler begins the
// transaction and then reads the body, and no request gets a connection: 503 after
// Options.MaxWait.
func TestSlowBodies(t *testing.T) {
	for _, streams := range []bool{false, true} {
		t.Run(fmt.Sprintf("in the transaction: %v", streams), func(t *testing.T) {
			t.Parallel()
			config, err := pgxpool.ParseConfig(ledger(t))
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
			wait := 10 * time.Second
			if streams {
				wait = 30 * time.Millisecond
			}
			fence, err := httpfence.NewTx(db.Transactor(), httpfence.ChiParam("id"), &httpfence.Options{
				TokenOnly: true, InsecureAnyResource: true, MaxWait: wait, Observer: guard.LogObserver(slog.New(slog.DiscardHandler)),
			})
			if err != nil {
				t.Fatal(err)
			}
			reading := make(chan struct{}, 8) // by the handler or, in front of it, by InTx
			router := chi.NewRouter()
			router.With(fence.InTx).Post("/accounts/{id}/close", func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				w.WriteHeader(http.StatusOK)
			})
			router.Post("/accounts/{id}/stream", func(w http.ResponseWriter, r *http.Request) {
				_ = db.InTx(r.Context(), guard.Claim{Resource: "slow", Token: 10}, func(context.Context, pgx.Tx) error {
					reading <- struct{}{}
					_, err := io.Copy(io.Discard, r.Body)
					return err
				})
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
			senders, path := 8, "close"
			if streams {
				senders, path = 4, "stream" // as many as there are connections
			}
			for range senders {
				conn, err := net.Dial("tcp", server.Listener.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = conn.Close() }()
				_, _ = io.WriteString(conn, "POST /accounts/slow/"+path+" HTTP/1.1\r\nHost: a.test\r\nX-Slow: 1\r\nX-Fencing-Token: 10\r\nContent-Length: 5\r\n\r\n12")
			}
			for range senders {
				<-reading
			}
			ask := func(path, token string) (int, time.Duration) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // ends a hang
				defer cancel()
				req := guard.Must(http.NewRequestWithContext(ctx, http.MethodPost, server.URL+path, strings.NewReader("12345")))
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
			// The pool closes a connection whose statement was cancelled, as that of a
			// look beside a raise, after the call has returned.
			for deadline := time.Now().Add(time.Minute); !streams && pool.Stat().AcquiredConns() > 0 && time.Now().Before(deadline); {
				time.Sleep(time.Millisecond)
			}
			if n := pool.Stat().AcquiredConns(); (n == 0) == streams {
				t.Errorf("%d connections in use", n)
			}
		})
	}
}

// told signals when its body is read.
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
