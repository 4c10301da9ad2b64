package lockhttp_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/driver/memory"
	"github.com/fencepost-go/fencepost/lockclient/lockhttp"
)

// tracked notices requests that arrive when it is closed.
type tracked struct {
	*memory.Issuer
	closed atomic.Bool
	late   atomic.Int64
}

func (c *tracked) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if c.closed.Load() {
		c.late.Add(1)
	}
	return c.Issuer.Acquire(ctx, r)
}

func (c *tracked) Release(ctx context.Context, claim guard.Claim) (bool, error) {
	if c.closed.Load() {
		c.late.Add(1)
	}
	return c.Issuer.Release(ctx, claim)
}

// TestRequestsDuringClose: requests arrive before, while and after the server is
// closed, as they do while an http.Server shuts down. Each is answered, and when
// Close has returned the issuer, which is closed then, gets none of them.
func TestRequestsDuringClose(t *testing.T) {
	for range 20 {
		issuer := &tracked{Issuer: memory.NewServer().Issuer()}
		h, err := lockhttp.New(issuer, everybody, &lockhttp.Options{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		var stop atomic.Bool
		for n := range 8 {
			wg.Go(func() {
				for !stop.Load() {
					got := record(h, "POST", "/v1/locks/acquire", "", fmt.Sprintf(`{"resource":"r%d","ttlSeconds":10}`, n))
					if got.Code != 200 && got.Code != 503 {
						t.Errorf("%d %s", got.Code, got.Body)
					}
				}
			})
		}
		time.Sleep(time.Millisecond)
		if err := h.Close(t.Context()); err != nil {
			t.Error(err)
		}
		issuer.closed.Store(true)
		time.Sleep(time.Millisecond)
		stop.Store(true)
		wg.Wait()
		if n := issuer.late.Load(); n > 0 {
			t.Fatalf("the issuer is closed and gets %d requests", n)
		}
		if err := h.Close(t.Context()); err != nil {
			t.Errorf("again: %v", err)
		}
		for _, request := range []struct{ method, path, body string }{
			{"GET", "/readyz", ""}, {"GET", "/v1/locks/r", ""}, {"DELETE", "/v1/locks/L?resource=r", ""},
			{"GET", "/v1/watch?resource=r", ""}, {"POST", "/v1/locks/L/renew", `{"resource":"r","fencingToken":1,"ttlSeconds":10}`},
		} {
			if got := record(h, request.method, request.path, "", request.body); got.Code != http.StatusServiceUnavailable || !strings.Contains(got.Body.String(), "unavailable") {
				t.Errorf("closed: %s %s: %d %s", request.method, request.path, got.Code, got.Body)
			}
		}
	}
}

// TestCloseGivesUp: Close returns when its context ends, although the issuer still
// does not answer.
func TestCloseGivesUp(t *testing.T) {
	forever := make(chan struct{})
	defer close(forever)
	h, err := lockhttp.New(stuck{memory.NewServer().Issuer(), forever}, everybody, &lockhttp.Options{Timeout: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	record(h, "DELETE", "/v1/locks/L?resource=r", "", "")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := h.Close(ctx); guard.ReasonOf(err) != guard.ReasonUnavailable {
		t.Errorf("%v", err)
	}
}
