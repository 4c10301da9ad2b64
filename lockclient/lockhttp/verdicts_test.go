package lockhttp_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/driver/memory"
	"github.com/fencepost-go/fencepost/lockclient/lockhttp"
)

// TestVerdictsOfClient: the Go client's good renewals are carried out although one is
// forbidden and one is out of bounds, and the longest names fit into a request.
func TestVerdictsOfClient(t *testing.T) {
	t.Parallel()
	server := memory.NewServer()
	web, _ := serve(t, server.Issuer(), func(*http.Request) (*lockhttp.Identity, error) {
		return &lockhttp.Identity{Subject: "a", Tenant: "acme", Templates: []*guard.Template{closes}, Limits: lockhttp.Limits{MaxTTL: time.Hour}}, nil
	}, nil)
	client := connect(t, web.URL)
	var renewals []driver.Renewal
	for n := range client.Limits().Batch {
		name := fmt.Sprintf("acme:billing-close:%03d", n)
		name += strings.Repeat("<", guard.MaxResourceLen-len(name)) // six bytes in JSON
		renewals = append(renewals, driver.Renewal{Claim: server.Steal(name, "a", time.Minute), TTL: 10 * time.Minute})
	}
	renewals[2].TTL = 2 * time.Hour
	renewals[5].Claim = server.Steal("umbrella:billing-close:5", "u", time.Minute)
	results := make([]driver.Renewed, len(renewals))
	client.Renew(t.Context(), renewals, results)
	for n, got := range results {
		switch n {
		case 2:
			if !errors.Is(got.Err, guard.ErrInvalid) || !errors.Is(got.Err, guard.ErrUnavailable) {
				t.Errorf("out of bounds: %+v", got)
			}
		case 5:
			if got.State != driver.Unknown || !errors.Is(got.Err, guard.ErrSetup) {
				t.Errorf("forbidden: %+v", got)
			}
		default:
			if got.State != driver.Extended {
				t.Errorf("%d: %+v", n, got)
			}
		}
	}
}

// explained is an issuer that knows who ended each lease.
type explained struct{ *memory.Issuer }

func (explained) Why(_ context.Context, claim guard.Claim) error {
	if claim.Token == guard.NoToken {
		return nil // of no lease
	}
	return &driver.ForceUnlockedError{Actor: "ada", Reason: "it hangs", At: time.Unix(1, 0)}
}

// TestWhyOfClient: the Go client knows who cut a lease from the renewal or the release that
// finds it over, whether the server signs or not, and of no other lease.
func TestWhyOfClient(t *testing.T) {
	t.Parallel()
	who := func(*http.Request) (*lockhttp.Identity, error) {
		return &lockhttp.Identity{Subject: "a", AllResources: true, Audience: "ledger"}, nil
	}
	for what, opts := range map[string]*lockhttp.Options{"signed": {Signer: &signer{}}, "not signed": nil} {
		server := memory.NewServer()
		web, _ := serve(t, explained{server.Issuer()}, who, opts)
		client := connect(t, web.URL)
		why := func(claim guard.Claim) error { return client.(driver.Explainer).Why(t.Context(), claim) }
		for _, resource := range []string{"renewed", "released"} {
			request := driver.Request{Resource: resource, LeaseID: "L", Owner: "o", TTL: time.Minute, Timeout: time.Minute}
			g, err := client.Acquire(t.Context(), request)
			testkit.Must(t, err)
			claim := guard.Claim{Resource: resource, Token: g.Token, LeaseID: "L"}
			if err := why(claim); err != nil {
				t.Errorf("%s, %s: while it runs: %v", what, resource, err)
			}
			server.Expire(resource)
			server.Steal(resource, "another", time.Minute)
			if resource == "renewed" {
				var renewed [1]driver.Renewed
				client.Renew(t.Context(), []driver.Renewal{{Claim: claim, TTL: time.Minute}}, renewed[:])
				if renewed[0].State != driver.Over {
					t.Errorf("%s: %+v", what, renewed)
				}
			} else {
				if freed, err := client.Release(t.Context(), claim); freed || err != nil {
					t.Errorf("%s: %t %v", what, freed, err)
				}
			}
			var cut *driver.ForceUnlockedError
			if err := why(claim); !errors.As(err, &cut) || cut.Actor != "ada" || cut.Reason != "it hangs" || cut.At.Unix() != 1 {
				t.Errorf("%s, %s: %v", what, resource, err)
			}
			claim.Token++
			if err := why(claim); err != nil {
				t.Errorf("%s, %s: of another lease: %v", what, resource, err)
			}
		}
	}
}

// bounded is an issuer that grants only TTLs within its bounds.
type bounded struct {
	*memory.Issuer
	limits driver.Limits
	asked  atomic.Int64
}

func (b *bounded) Limits() driver.Limits { return b.limits }
func (b *bounded) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	b.asked.Store(int64(r.TTL))
	return b.Issuer.Acquire(ctx, r)
}

// TestReadyTTL: the lease that /readyz acquires is one that the issuer grants.
func TestReadyTTL(t *testing.T) {
	t.Parallel()
	const s = time.Second
	for _, c := range []struct{ low, high, step, want time.Duration }{
		{0, 0, 0, 10 * s}, {0, 5 * s, 0, 5 * s}, {15 * s, 60 * s, 0, 15 * s}, {0, 0, 4 * s, 8 * s}, {0, 0, 20 * s, 20 * s},
		{6 * s, 0, 6 * s, 6 * s}, {1, 3 * s, s, 3 * s}, {0, 2500 * time.Millisecond, s, 2 * s}, {0, 0, time.Microsecond, 10 * s},
	} {
		issuer := &bounded{Issuer: memory.NewServer().Issuer(), limits: driver.Limits{MinTTL: c.low, MaxTTL: c.high, TTLStep: c.step}}
		web, _ := serve(t, issuer, everybody, nil)
		if got := ask(t, web.URL, "", "GET", "/readyz", ""); got.status != 200 || time.Duration(issuer.asked.Load()) != c.want {
			t.Errorf("%+v: %d, with a TTL of %v", c, got.status, time.Duration(issuer.asked.Load()))
		}
	}
}

// TestHeldForDecades: a refusal is read as one however long the lease lasts.
func TestHeldForDecades(t *testing.T) {
	t.Parallel()
	server := memory.NewServer()
	web, _ := serve(t, server.Issuer(), everybody, nil)
	client := connect(t, web.URL)
	server.Steal("r", "x", 100*365*24*time.Hour)
	_, err := client.Acquire(t.Context(), driver.Request{Resource: "r", LeaseID: "L", Owner: "o", TTL: time.Minute, Timeout: time.Minute})
	if held, is := errors.AsType[*driver.HeldError](err); !is || held.Remaining < 10*365*24*time.Hour {
		t.Errorf("%v", err)
	}
	watching, err := client.Watch(t.Context(), driver.Watch{Resource: "r"}, func() {})
	testkit.Must(t, err)
	watching.Stop()
}

// TestFieldsOfAForceUnlock: what the operators' call finds wrong has its name on the wire.
func TestFieldsOfAForceUnlock(t *testing.T) {
	t.Parallel()
	issuer, operator, _ := postgres(t, 4)
	web, _ := serve(t, issuer, everybody, &lockhttp.Options{Admin: operator})
	for _, resource := range []string{"r", "s"} {
		ask(t, web.URL, "", "POST", "/v1/locks/acquire", `{"resource":"`+resource+`","ttlSeconds":600}`)
	}
	for _, c := range [][3]string{
		{"r", `{"actorId":"a\u0007","reason":"x"}`, "actorId"},
		{"r", `{"actorId":" ","reason":"x"}`, "actorId"},
		{"r", `{"actorId":"a","reason":"x\u0007"}`, "reason"},
		{"r", `{"actorId":"a","reason":"x","leaseId":"\u0007"}`, "leaseId"},
		{"r", `{"actorId":"a","reason":"x","requestId":"\u0007"}`, "requestId"},
		{"r", `{"actorId":"a","reason":"x","requestId":"once"}`, ""},
		{"s", `{"actorId":"a","reason":"x","requestId":"once"}`, "requestId"},
	} {
		if got := ask(t, web.URL, "", "POST", "/v1/resources/"+c[0]+"/force-unlock", c[1]); got.str("field") != c[2] {
			t.Errorf("%s: %d for %q, want %q: %s", c[1], got.status, got.str("field"), c[2], got.text)
		}
	}
}

// TestPageIsAClient: the page is the same for everybody, runs no script but its own, and
// identifies nobody; what it shows comes from requests that do.
func TestPageIsAClient(t *testing.T) {
	t.Parallel()
	web, _ := serve(t, memory.NewServer().Issuer(), people, nil)
	for path, part := range map[string]string{"/ui": `src="ui/page.js"`, "/ui?": "fencectl marks raise RESOURCE TOKEN --lease-id ID", // and not how to cut the next holder
		"/ui/page.js": "use strict", "/ui/page.css": "color-scheme"} {
		got := ask(t, web.URL, "", "GET", path, "")
		policy := got.header.Get("Content-Security-Policy")
		if got.status != 200 || !strings.Contains(got.text, part) || !strings.HasPrefix(policy, "default-src 'none'; script-src 'self';") || got.header.Get("Set-Cookie") != "" {
			t.Errorf("%s: %d %v %s", path, got.status, got.header, got.text)
		}
	}
	r, _ := http.NewRequest("GET", web.URL+"/v1/time", nil)
	r.AddCookie(&http.Cookie{Name: "fencepost_page", Value: "YWNtZS0x"})
	if got := send(t, r); got.status != 401 {
		t.Errorf("by a cookie: %d %s", got.status, got.text)
	}
}
