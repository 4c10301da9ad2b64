package lockhttp_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/driver/memory"
	"github.com/fencepost-go/fencepost/lockclient/lockhttp"
)

// TestLeasesAreCountedWhileTheyRun: no request makes the server forget a lease
// that runs, so that an identity holds no more than its limit.
func TestLeasesAreCountedWhileTheyRun(t *testing.T) {
	t.Parallel()
	var gone context.CancelFunc
	server := memory.NewServer()
	issuer := &leaving{Issuer: server.Issuer(), leave: func() {
		if gone != nil {
			gone()
		}
	}}
	h, err := lockhttp.New(issuer, func(*http.Request) (*lockhttp.Identity, error) {
		return &lockhttp.Identity{Subject: "greedy", AllResources: true, Limits: lockhttp.Limits{Leases: 1}}, nil
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close(t.Context())
	acquire := func(resource string) *httptest.ResponseRecorder {
		return record(h, "POST", "/v1/locks/acquire", "", `{"resource":"`+resource+`","leaseId":"L","ttlSeconds":600}`)
	}
	if got := acquire("first"); got.Code != 200 {
		t.Fatal(got.Code, got.Body)
	}
	for name, send := range map[string]func() *httptest.ResponseRecorder{
		"a release under another token": func() *httptest.ResponseRecorder {
			return record(h, "DELETE", "/v1/locks/L?resource=first&fencingToken=9", "", "")
		},
		"a renewal under another token": func() *httptest.ResponseRecorder {
			return record(h, "POST", "/v1/locks/L/renew", "", `{"resource":"first","fencingToken":"9","ttlSeconds":600}`)
		},
	} {
		if got := send(); got.Code != 404 {
			t.Errorf("%s: %d %s", name, got.Code, got.Body)
		}
		if got := acquire("second"); got.Code != 429 || server.Last("second") != 0 {
			t.Errorf("after %s a second lease is granted: %d %s", name, got.Code, got.Body)
			record(h, "DELETE", "/v1/locks/L?resource=second&fencingToken=1", "", "")
		}
	}
	if got := record(h, "DELETE", "/v1/locks/L?resource=first&fencingToken=1", "", ""); got.Code != 200 {
		t.Fatal(got.Code, got.Body)
	}
	// A client that goes away at the moment of the grant has the lease.
	ctx, cancel := context.WithCancel(t.Context())
	gone = cancel
	r := httptest.NewRequestWithContext(ctx, "POST", "/v1/locks/acquire", strings.NewReader(`{"resource":"third","leaseId":"L","ttlSeconds":600}`))
	r.Header.Set("Content-Type", "application/json")
	h.ServeHTTP(httptest.NewRecorder(), r)
	gone = nil
	if server.Holder("third") == nil {
		t.Fatal("nothing was granted")
	}
	if got := acquire("fourth"); got.Code != 429 {
		t.Errorf("after a client went away a second lease is granted: %d %s", got.Code, got.Body)
	}
	if got := acquire("third"); got.Code != 200 {
		t.Errorf("the lease that it has: %d %s", got.Code, got.Body)
	}
}

// leaving makes the client go away when it was granted a lease.
type leaving struct {
	*memory.Issuer
	leave func()
}

func (l *leaving) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	g, err := l.Issuer.Acquire(ctx, r)
	l.leave()
	return g, err
}
