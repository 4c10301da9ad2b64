package zk_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/lockhttp"
)

// TestLockServer: a lease over the lock server can be renewed also if the issuer
// counts it from before the request, as for a session that is older than a tick.
func TestLockServer(t *testing.T) {
	i := issuer(t, nil, startServers(t, 1).Addrs()...)
	h, err := lockhttp.New(i, func(*http.Request) (*lockhttp.Identity, error) {
		return &lockhttp.Identity{Subject: "a", AllResources: true}, nil
	}, &lockhttp.Options{Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close(t.Context())
	web := httptest.NewServer(h)
	defer web.Close()
	remote, err := lockhttp.NewIssuer(web.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	client, err := lockclient.New(remote, "o", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close(t.Context())
	backdated := false
	const ttl = 10 * time.Second
	for range 4 {
		lease, err := client.TryAcquire(t.Context(), "r", &lockclient.AcquireOptions{TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		backdated = backdated || lease.Remaining() < ttl-time.Second
		if err := lease.Renew(t.Context()); err != nil {
			t.Errorf("with %v left: %v", lease.Remaining(), err)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
	}
	if !backdated {
		t.Error("no lease was counted from before its request: the test shows nothing")
	}
}
