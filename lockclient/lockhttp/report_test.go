package lockhttp_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver/memory"
	"github.com/fencepost-go/fencepost/lockclient/lockhttp"
)

// clogged is a logger and an observer that block, on a full pipe for example.
type clogged struct{ until chan struct{} }

func (c clogged) Write(b []byte) (int, error)          { <-c.until; return len(b), nil }
func (c clogged) Observe(context.Context, guard.Event) { <-c.until }

// TestNobodyWaitsForReports: a logger and an observer that block delay no response, no
// raise of a claim that was invalidated, and no release of what nobody got. A signer that
// blocks is given up like an issuer.
func TestNobodyWaitsForReports(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clogged{make(chan struct{})}
		server := memory.NewServer()
		raised := 0
		h := open(t, server.Issuer(), everybody, &lockhttp.Options{
			Admin: cutting{}, Timeout: usual, Logger: slog.New(slog.NewTextHandler(c, nil)), Observer: c,
			Raise: func(context.Context, guard.Claim) error { raised++; return context.Canceled },
		})
		for range 3 {
			for _, r := range []struct {
				method, path, body string
				status             int
			}{
				{"POST", "/v1/locks/acquire", `{"resource":"r","leaseId":"L","ttlSeconds":600}`, 200},
				{"POST", "/v1/locks/renew", `{"resource":"r","leaseId":"L","ttlSeconds":600}`, 200},
				{"DELETE", "/v1/locks/L?resource=r&fencingToken=%d", "", 200},
				{"POST", "/v1/resources/r/force-unlock", `{"actorId":"ada","reason":"it hangs"}`, 200},
				{"POST", "/v1/locks/acquire", `{"resource":"fencepost-readyz","ttlSeconds":600}`, 403},
			} {
				began := time.Now()
				path := strings.Replace(r.path, "%d", server.Last("r").String(), 1)
				if got := record(h, r.method, path, "", r.body); got.Code != r.status || time.Since(began) > time.Second {
					t.Errorf("%s %s: after %v: %d %s", r.method, path, time.Since(began), got.Code, got.Body)
				}
			}
		}
		if raised != 3 {
			t.Errorf("raised %d times", raised)
		}
		close(c.until)
		testkit.Check(t, h.Close(t.Context()))

		until := make(chan struct{})
		who := func(id *lockhttp.Identity, err error) (*lockhttp.Identity, error) { id.Audience = "a"; return id, err }
		h = open(t, server.Issuer(), func(r *http.Request) (*lockhttp.Identity, error) { return who(everybody(r)) }, &lockhttp.Options{Timeout: usual, Signer: silent(until)})
		if got := record(h, "POST", "/v1/locks/acquire", "", `{"resource":"s","ttlSeconds":600}`); got.Code != 500 {
			t.Errorf("%d %s", got.Code, got.Body)
		}
		synctest.Wait()
		if held := server.Holder("s"); held != nil {
			t.Errorf("not released while it blocks: %v", held)
		}
		close(until)
		h.Close(t.Context())
	})
}

// silent is a signer that does not respond.
type silent chan struct{}

func (s silent) Sign(guard.Claim, string, time.Time) (string, error) { <-s; return "", nil }

// TestWatchersThatNeverAsk: a thousand Go clients that watch and never ask delay a client
// that waits by less than two seconds.
func TestWatchersThatNeverAsk(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := memory.NewServer()
		h := open(t, server.Issuer(), everybody, &lockhttp.Options{Timeout: usual, MaxWait: time.Hour})
		held := server.Steal("r", "holder", time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for n := range 900 {
			wg.Go(func() {
				h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", fmt.Sprintf("/v1/watch?resource=r&leaseId=w%d", n), nil))
			})
		}
		synctest.Wait()
		waited := make(chan time.Duration)
		go func() {
			began := time.Now()
			if got := record(h, "POST", "/v1/locks/acquire", "", `{"resource":"r","ttlSeconds":60,"waitSeconds":3000}`); got.Code != 200 {
				t.Errorf("%d %s", got.Code, got.Body)
			}
			waited <- time.Since(began)
		}()
		synctest.Wait()
		record(h, "DELETE", "/v1/locks/"+held.LeaseID+"?resource=r", "", "")
		if took := <-waited; took > 2*time.Second {
			t.Errorf("granted after %v", took)
		}
		cancel()
		wg.Wait()
		h.Close(t.Context())
	})
}
