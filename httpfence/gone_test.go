package httpfence_test

import (
	"context"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/httpfence"
	"github.com/fencepost-go/fencepost/internal/pgtest"
)

// TestInTxOfAClientThatIsGone: over a socket and on PostgreSQL, whatever ends
// a request after its handler has written leaves nothing of the work, no
// connection in use, and no lock that the successor would wait for. The handler
// that is let alone is the control: its work is there.
func TestInTxOfAClientThatIsGone(t *testing.T) {
	url := pgtest.Database(t)
	p := newReplica(t, url)
	if _, err := p.pool.Exec(t.Context(), ledgerSchema); err != nil {
		t.Fatal(err)
	}
	writes := func() (n int) {
		if err := p.pool.QueryRow(context.Background(), "SELECT count(*) FROM writes").Scan(&n); err != nil {
			t.Error(err)
		}
		return n
	}
	token := guard.Token(0)
	for name, c := range map[string]struct {
		end       func(hangUp func(), r *http.Request) // in the handler, after the write
		committed int
	}{
		"control: nothing happens": {func(func(), *http.Request) {}, 1},
		"the client hangs up, and the handler goes on": {func(hangUp func(), r *http.Request) {
			hangUp()
			<-r.Context().Done()
		}, 0},
		"http.ErrAbortHandler": {func(func(), *http.Request) { panic(http.ErrAbortHandler) }, 0},
		"a panic":              {func(func(), *http.Request) { panic("a bug of the handler's") }, 0},
	} {
		t.Run(name, func(t *testing.T) {
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
			// What is leaked stays; what is only closed later does not.
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
