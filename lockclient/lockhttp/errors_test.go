package lockhttp_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/driver/memory"
	"github.com/fencepost-go/fencepost/lockclient/lockhttp"
)

// failed is an issuer all of whose calls end with one error.
type failed struct {
	*memory.Issuer
	err error
}

func (f failed) Acquire(context.Context, driver.Request) (driver.Grant, error) {
	return driver.Grant{}, f.err
}

func (f failed) Renew(_ context.Context, _ []driver.Renewal, results []driver.Renewed) {
	for n := range results {
		results[n].Err = f.err
	}
}

func (f failed) Release(context.Context, guard.Claim) (bool, error) { return false, f.err }

func (f failed) Watch(context.Context, driver.Watch, func()) (driver.Watching, error) {
	return driver.Watching{}, f.err
}

// TestP6ErrorsOverHTTP: each error of an issuer is one status and one problem for the
// clients in other languages, which reveal none of its text, and the Go client makes the
// same error of it: of each call, and of each renewal of a batch.
func TestP6ErrorsOverHTTP(t *testing.T) {
	t.Parallel()
	claim, other := guard.Claim{Resource: "r", LeaseID: "L", Token: 1}, guard.Claim{Resource: "s", LeaseID: "L", Token: 1}
	cause := errors.New("inner workings")
	for _, c := range []struct {
		err        error
		status     int
		problem    string
		retryAfter string
		reason     guard.Reason // that the Go client sees
		watch      guard.Reason // of a watch, which writes nothing
	}{
		{guard.OutcomeUnknown("x", claim, cause), 500, "outcome_unknown", "", guard.ReasonOutcomeUnknown, guard.ReasonUnavailable},
		{fmt.Errorf("%w: %w", guard.ErrMarkAhead, cause), 503, "issuer_behind", "", guard.ReasonMarkAhead, guard.ReasonMarkAhead},
		{guard.Setup("x", claim, cause), 500, "setup", "", guard.ReasonSetup, guard.ReasonSetup},
		{guard.Unavailable("x", claim, cause), 503, "unavailable", "1", guard.ReasonUnavailable, guard.ReasonUnavailable},
		{cause, 500, "internal", "", guard.ReasonOutcomeUnknown, guard.ReasonUnavailable},
	} {
		web, _ := serve(t, failed{memory.NewServer().Issuer(), c.err}, everybody, nil)
		client := connect(t, web.URL)
		for _, request := range []struct{ method, path, body string }{
			{"POST", "/v1/locks/acquire", `{"resource":"r","leaseId":"L","ttlSeconds":600}`},
			{"POST", "/v1/locks/acquire", `{"resource":"r","leaseId":"L","ttlSeconds":600,"waitSeconds":60}`},
			{"POST", "/v1/locks/L/renew", `{"resource":"r","fencingToken":1,"ttlSeconds":600}`},
			{"DELETE", "/v1/locks/L?resource=r&fencingToken=1", ""},
		} {
			got := ask(t, web.URL, "", request.method, request.path, request.body)
			if got.status != c.status || got.problem() != c.problem || strings.Contains(got.text, cause.Error()) || got.header.Get("Retry-After") != c.retryAfter {
				t.Errorf("%v: %s %s: %d %s", c.err, request.method, request.path, got.status, got.text)
			}
		}
		_, acquired := client.Acquire(t.Context(), driver.Request{Resource: "r", LeaseID: "L", Owner: "o", TTL: time.Minute, Timeout: time.Minute})
		_, released := client.Release(t.Context(), claim)
		_, watched := client.Watch(t.Context(), driver.Watch{Resource: "r"}, func() {})
		var one [1]driver.Renewed
		var two [2]driver.Renewed
		client.Renew(t.Context(), []driver.Renewal{{Claim: claim, TTL: time.Minute}}, one[:])
		client.Renew(t.Context(), []driver.Renewal{{Claim: claim, TTL: time.Minute}, {Claim: other, TTL: time.Minute}}, two[:])
		for what, err := range map[string]error{
			"acquire": acquired, "release": released, "renew": one[0].Err, "renew the first": two[0].Err, "renew the second": two[1].Err,
		} {
			if guard.ReasonOf(err) != c.reason {
				t.Errorf("%v: %s: the client says %v", c.err, what, err)
			}
		}
		if guard.ReasonOf(watched) != c.watch {
			t.Errorf("%v: watch: the client says %v", c.err, watched)
		}
	}
	// Readiness and credentials that cannot be checked have the same types.
	web, _ := serve(t, failed{memory.NewServer().Issuer(), guard.ErrMarkAhead}, everybody, nil)
	if got := ask(t, web.URL, "", "GET", "/readyz", ""); got.status != 503 || got.problem() != "issuer_behind" {
		t.Errorf("readiness: %s", got.text)
	}
	lacking := func(*http.Request) (*lockhttp.Identity, error) {
		return nil, guard.Setup("look up", guard.Claim{}, cause)
	}
	web, _ = serve(t, memory.NewServer().Issuer(), lacking, nil)
	if got := ask(t, web.URL, "", "POST", "/v1/locks/acquire", `{"resource":"r","ttlSeconds":600}`); got.status != 500 || got.problem() != "setup" {
		t.Errorf("credentials: %s", got.text)
	}
}
