package lockhttp_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/driver/memory"
	"github.com/fencepost-go/fencepost/lockclient/lockhttp"
)

// unready is an issuer whose store lacks something that no retry brings.
type unready struct{ *memory.Issuer }

var errNoRight = errors.New("a right is missing")

func (unready) Acquire(_ context.Context, r driver.Request) (driver.Grant, error) {
	return driver.Grant{}, guard.Setup("acquire", r.Claim(), errNoRight)
}

func (unready) Renew(_ context.Context, renewals []driver.Renewal, results []driver.Renewed) {
	for n, r := range renewals {
		results[n].Err = guard.Setup("renew", r.Claim, errNoRight)
	}
}

func (unready) Release(_ context.Context, claim guard.Claim) (bool, error) {
	return false, guard.Setup("release", claim, errNoRight)
}

// TestP6SetupOverHTTP: what needs a person arrives as that, of each call and of each
// renewal of a batch, and of credentials that cannot be checked.
func TestP6SetupOverHTTP(t *testing.T) {
	t.Parallel()
	web, _ := serve(t, unready{memory.NewServer().Issuer()}, everybody, nil)
	client := connect(t, web.URL)
	a, b := guard.Claim{Resource: "r", LeaseID: "a", Token: 1}, guard.Claim{Resource: "s", LeaseID: "b", Token: 1}
	_, acquired := client.Acquire(t.Context(), driver.Request{Resource: "r", LeaseID: "a", Owner: "o", TTL: time.Minute, Timeout: time.Minute})
	_, released := client.Release(t.Context(), a)
	errs := map[string]error{"acquire": acquired, "release": released}
	for what, claims := range map[string][]guard.Claim{"renew": {a}, "renew both": {a, b}} {
		renewals, results := make([]driver.Renewal, len(claims)), make([]driver.Renewed, len(claims))
		for n, claim := range claims {
			renewals[n] = driver.Renewal{Claim: claim, TTL: driver.Request{Resource: "", LeaseID: "", Owner: "o", TTL: time.Minute, Timeout: time.Minute}.TTL}
		}
		client.Renew(t.Context(), renewals, results)
		for _, r := range results {
			errs[what] = errors.Join(errs[what], r.Err)
		}
	}
	for what, err := range errs {
		if guard.ReasonOf(err) != guard.ReasonSetup || errors.Is(err, guard.ErrUnavailable) {
			t.Errorf("%s: %v", what, err)
		}
	}
	lacking := func(*http.Request) (*lockhttp.Identity, error) {
		return nil, guard.Setup("look up", guard.Claim{}, errNoRight)
	}
	web, _ = serve(t, memory.NewServer().Issuer(), lacking, nil)
	if got := ask(t, web.URL, "", "POST", "/v1/locks/acquire", `{"resource":"r","ttlSeconds":30}`); got.status != 500 || got.problem() != "setup" {
		t.Errorf("credentials: %s", got.text)
	}
}
