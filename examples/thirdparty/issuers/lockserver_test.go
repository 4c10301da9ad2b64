package main

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/process"
	"github.com/fencepost-go/fencepost/internal/suites/issuers/servers"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/lockhttp"
)

type credentials string

func (c credentials) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(c))
	return http.DefaultTransport.RoundTrip(r)
}

// TestLockServer: the lock server's leases are etcd's. Two workers hold one in turn, over HTTP, and a
// fence refuses the first one's claim after that. A client without a token, or that names another
// tenant's resource, gets nothing.
func TestLockServer(t *testing.T) {
	started := &process.Run{}
	t.Cleanup(started.Close)
	issuer := guard.Must(connect("etcd", servers.StartEtcd(started, 1).Addrs()))
	templates := []*guard.Template{guard.Must(guard.NewTemplate("{tenant}:billing-close:{period}"))}
	locks := guard.Must(lockhttp.New(issuer, func(r *http.Request) (*lockhttp.Identity, error) {
		if r.Header.Get("Authorization") != "Bearer secret" { // jwt.go is for more than a test
			return nil, errors.New("the bearer token is unknown")
		}
		return &lockhttp.Identity{Subject: "demo", Tenant: "demo", Templates: templates}, nil
	}, &lockhttp.Options{Timeout: time.Minute, ReadyWithin: time.Minute}))
	web := httptest.NewServer(locks)
	t.Cleanup(func() {
		if err := errors.Join(locks.Close(context.Background()), issuer.Close()); err != nil {
			t.Error(err)
		}
		web.Close()
	})
	client := func(token string) *lockclient.Client {
		issuer, err := lockhttp.NewIssuer(web.URL, &http.Client{Transport: credentials(token)})
		if err != nil {
			t.Fatal(err)
		}
		c, err := lockclient.New(issuer, "worker", nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close(context.Background()) })
		return c
	}
	const resource = "demo:billing-close:2026-04"
	opts := &lockclient.AcquireOptions{TTL: 10 * time.Minute}
	a, err := client("secret").Acquire(t.Context(), resource, opts)
	if err != nil {
		t.Fatal(err)
	}
	other := client("secret")
	if _, err := other.TryAcquire(t.Context(), resource, opts); !errors.Is(err, lockclient.ErrHeld) {
		t.Errorf("while it is held: %v", err)
	}
	if err := a.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	b, err := other.Acquire(t.Context(), resource, opts)
	if err != nil || b.Token() <= a.Token() {
		t.Fatalf("%v after %v, %v", b.Token(), a.Token(), err)
	}
	marks := guard.NewMemory()
	for _, c := range []struct {
		claim guard.Claim
		want  guard.Reason
	}{{a.Claim(), guard.ReasonNone}, {b.Claim(), guard.ReasonNone}, {a.Claim(), guard.ReasonStale}} {
		if _, err := marks.Admit(t.Context(), c.claim); guard.ReasonOf(err) != c.want {
			t.Errorf("token %v: %v, want %v", c.claim.Token, err, c.want)
		}
	}
	for what, c := range map[string]struct {
		token, method, path, body string
		status                    int
	}{
		"no token":         {"x", "POST", "/v1/locks/acquire", `{"resource":"demo:billing-close:1","ttlSeconds":60}`, 401},
		"another tenant's": {"secret", "POST", "/v1/locks/acquire", `{"resource":"acme:billing-close:1","ttlSeconds":60}`, 403},
		"a list":           {"secret", "GET", "/v1/locks?prefix=demo", "", 501},
		"ready":            {"secret", "GET", "/readyz", "", 200},
	} {
		r, _ := http.NewRequest(c.method, web.URL+c.path, strings.NewReader(c.body))
		r.Header.Set("Content-Type", "application/json")
		answer, err := (&http.Client{Transport: credentials(c.token)}).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		if answer.Body.Close(); answer.StatusCode != c.status {
			t.Errorf("%s: status %d, want %d", what, answer.StatusCode, c.status)
		}
	}
}
