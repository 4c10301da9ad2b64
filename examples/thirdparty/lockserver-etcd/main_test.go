package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/suites/issuers/etcdnode"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/lockhttp"
)

func TestMain(m *testing.M) {
	etcdnode.Main()
	m.Run()
}

type credentials string

func (c credentials) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(c))
	return http.DefaultTransport.RoundTrip(r)
}

// TestServer: two workers hold an etcd lease in turn, over HTTP, and a fence
// refuses the first one's claim after that. A client without a token, or that
// names another tenant's resource, gets nothing.
func TestServer(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	out, in := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := run(ctx, flags{demo: true, tenant: "demo", listen: "127.0.0.1:0"}, in)
		in.CloseWithError(err)
		ended <- err
	}()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	var first struct{ URL, Token string }
	if err != nil || json.Unmarshal([]byte(line), &first) != nil || first.Token == "" {
		t.Fatalf("%v: %s", err, line)
	}
	connect := func(token string) *lockclient.Client {
		issuer, err := lockhttp.NewIssuer(first.URL, &http.Client{Transport: credentials(token)})
		if err != nil {
			t.Fatal(err)
		}
		client, err := lockclient.New(issuer, "worker", nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.Close(context.Background()) })
		return client
	}
	const resource = "demo:billing-close:2026-04"
	opts := &lockclient.AcquireOptions{TTL: 10 * time.Minute}
	a, err := connect(first.Token).Acquire(t.Context(), resource, opts)
	if err != nil {
		t.Fatal(err)
	}
	other := connect(first.Token)
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
	marks := guard.NewMemory(nil)
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
		"another tenant's": {first.Token, "POST", "/v1/locks/acquire", `{"resource":"acme:billing-close:1","ttlSeconds":60}`, 403},
		"a list":           {first.Token, "GET", "/v1/locks?prefix=demo", "", 501},
		"ready":            {first.Token, "GET", "/readyz", "", 200},
	} {
		r, _ := http.NewRequest(c.method, first.URL+c.path, strings.NewReader(c.body))
		r.Header.Set("Content-Type", "application/json")
		answer, err := (&http.Client{Transport: credentials(c.token)}).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		if answer.Body.Close(); answer.StatusCode != c.status {
			t.Errorf("%s: status %d, want %d", what, answer.StatusCode, c.status)
		}
	}
	if err := run(t.Context(), flags{endpoints: "http://localhost:1"}, io.Discard); err == nil || !strings.Contains(err.Error(), "LOCKSERVER_TOKEN") {
		t.Errorf("without a token: %v", err)
	}
}
