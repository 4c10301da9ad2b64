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

func (explained) Why(context.Context, guard.Claim) error {
	return &driver.ForceUnlockedError{Actor: "ada", Reason: "it hangs", At: time.Unix(1, 0)}
}

// TestWhyChangesNothing: asking why a lease is over is possible whatever the
// server's bounds for TTLs are, and does not touch a running lease.
func TestWhyChangesNothing(t *testing.T) {
	t.Parallel()
	server := memory.NewServer()
	web, _ := serve(t, explained{server.Issuer()}, func(*http.Request) (*lockhttp.Identity, error) {
		return &lockhttp.Identity{Subject: "a", Tenant: "acme", Templates: []*guard.Template{closes}, Limits: lockhttp.Limits{MinTTL: time.Minute}}, nil
	}, nil)
	client := connect(t, web.URL).(driver.Explainer)
	claim := server.Steal("acme:billing-close:1", "a", time.Hour)
	var cut *driver.ForceUnlockedError
	if err := client.Why(t.Context(), claim); !errors.As(err, &cut) || cut.Actor != "ada" || cut.Reason != "it hangs" || cut.At.Unix() != 1 {
		t.Errorf("%v", err)
	}
	if h := server.Holder(claim.Resource); h == nil || h.Remaining < 59*time.Minute {
		t.Errorf("the lease was touched: %+v", h)
	}
	if err := client.Why(t.Context(), server.Steal("umbrella:billing-close:1", "u", time.Hour)); err != nil {
		t.Errorf("of another tenant's: %v", err)
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

// TestPageIsAClient: the page is the same for everybody, runs no script but its own, and
// identifies nobody; what it shows comes from requests that do.
func TestPageIsAClient(t *testing.T) {
	t.Parallel()
	web, _ := serve(t, memory.NewServer().Issuer(), people, nil)
	for path, part := range map[string]string{"/ui": `src="ui/page.js"`, "/ui/page.js": "use strict", "/ui/page.css": "color-scheme"} {
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
