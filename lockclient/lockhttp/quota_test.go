package lockhttp_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver/memory"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
	"github.com/fencepost-go/fencepost/lockclient/lockhttp"
)

// TestResourcesOfATenant: a tenant at its limit leases what it has leased before and nothing else, on
// each server, until a purge has made room. The controls are a tenant without a limit and
// one with a limit of its own.
func TestResourcesOfATenant(t *testing.T) {
	t.Parallel()
	issuer, operator, pool := postgres(t, 4)
	limited := func(r *http.Request) (*lockhttp.Identity, error) {
		id, err := people(r)
		if err == nil && id.Tenant == "acme" {
			id.Limits.Resources = 2
		}
		return id, err
	}
	first, _ := serve(t, issuer, limited, &lockhttp.Options{Admin: operator})
	acquire := func(url, token, tenant, period, id string) response {
		return ask(t, url, token, "POST", "/v1/locks/acquire", fmt.Sprintf(`{"resource":"%s:billing-close:%s","leaseId":%q,"ownerId":"w","ttlSeconds":600}`, tenant, period, id))
	}
	for _, period := range []string{"1", "2"} {
		if got := acquire(first.URL, "acme-1", "acme", period, "lease-"+period); got.status != 200 {
			t.Fatalf("%s: %d %s", period, got.status, got.text)
		}
	}
	second, _ := serve(t, issuer, limited, &lockhttp.Options{Admin: operator})
	for _, url := range []string{first.URL, second.URL} {
		if got := acquire(url, "acme-2", "acme", "3", "lease-3"); got.status != 429 || got.problem() != "too_many_requests" {
			t.Errorf("one too many: %d %s", got.status, got.text)
		}
		if got := acquire(url, "acme-2", "acme", "1", "another"); got.status != 409 {
			t.Errorf("a resource that it has: %d %s", got.status, got.text)
		}
	}
	var rows int
	if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM fencepost.leases WHERE resource LIKE 'acme:%'").Scan(&rows); err != nil || rows != 2 {
		t.Errorf("%d rows, %v", rows, err)
	}
	for n := range 4 {
		if got := acquire(first.URL, "umbrella-1", "umbrella", fmt.Sprint(n), fmt.Sprint("lease-", n)); got.status != 200 {
			t.Errorf("a tenant without a limit: %d %s", got.status, got.text)
		}
	}
	if _, err := pool.Exec(t.Context(), "UPDATE fencepost.leases SET lease_id = NULL, expires_at = now() - interval '1 hour', spent_until = '-infinity' WHERE resource = 'acme:billing-close:2'"); err != nil {
		t.Fatal(err)
	}
	if done, err := operator.Purge(t.Context(), &lockadmin.PurgeOptions{OlderThan: time.Minute}); err != nil || done.Count != 1 {
		t.Fatalf("%+v, %v", done, err)
	}
	testkit.Eventually(t, "room after a purge", func() bool { return acquire(first.URL, "acme-1", "acme", "3", "lease-3").status == 200 })
}

// TestHoldersAreHidden: who may name a resource sees until when its lease runs, and not who
// holds it, in no response; an operator does. The control is a server that shows holders.
func TestHoldersAreHidden(t *testing.T) {
	t.Parallel()
	for _, show := range []bool{false, true} {
		issuer, operator, _ := postgres(t, 4)
		handler := guard.Must(lockhttp.New(issuer, people, &lockhttp.Options{
			Admin: operator, ShowHolders: show, Timeout: testkit.Patience, MaxWait: time.Second, Logger: slog.New(slog.DiscardHandler),
		}))
		server := httptest.NewServer(handler)
		t.Cleanup(func() { handler.Close(context.Background()); server.Close() })
		const body = `{"resource":"acme:billing-close:1","leaseId":%q,"ownerId":"host-17","metadata":"process 4711","ttlSeconds":600}`
		if got := ask(t, server.URL, "acme-1", "POST", "/v1/locks/acquire", fmt.Sprintf(body, "a")); got.status != 200 {
			t.Fatalf("%d %s", got.status, got.text)
		}
		for what, see := range map[string]func(token string) string{
			"acquire": func(token string) string {
				return ask(t, server.URL, token, "POST", "/v1/locks/acquire", strings.NewReplacer("host-17", "other", "process 4711", "").Replace(fmt.Sprintf(body, "b"))).text
			},
			"get": func(token string) string {
				return ask(t, server.URL, token, "GET", "/v1/resources/acme:billing-close:1", "").text
			},
			"list": func(token string) string { return ask(t, server.URL, token, "GET", "/v1/locks", "").text },
			"watch": func(token string) string {
				return ask(t, server.URL, token, "GET", "/v1/watch?resource=acme:billing-close:1", "").text
			},
		} {
			for token, sees := range map[string]bool{"acme-2": show, "acme-ops": true} {
				text := see(token)
				if said := strings.Contains(text, "host-17") || strings.Contains(text, "4711"); said != sees || !strings.Contains(text, "remainingSeconds") {
					t.Errorf("%s by %s, shown %t: %s", what, token, show, text)
				}
			}
		}
	}
}

// TestResourcesWithoutOperators: a server without operators' calls counts what it was asked for.
func TestResourcesWithoutOperators(t *testing.T) {
	t.Parallel()
	one := func(r *http.Request) (*lockhttp.Identity, error) {
		id, err := people(r)
		if err == nil {
			id.Limits.Resources = 1
		}
		return id, err
	}
	server, _ := serve(t, memory.NewServer().Issuer(), one, nil)
	for period, want := range []int{200, 429} {
		if got := ask(t, server.URL, "acme-1", "POST", "/v1/locks/acquire", fmt.Sprintf(`{"resource":"acme:billing-close:%d","ownerId":"w","ttlSeconds":600}`, period)); got.status != want {
			t.Errorf("%d: %d %s", period, got.status, got.text)
		}
	}
}
