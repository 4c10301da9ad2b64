package lockhttp_test

import (
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver/memory"
	"github.com/fencepost-go/fencepost/lockclient/lockhttp"
)

// signer writes what it is asked to sign, and fails if told to.
type signer struct{ err error }

func (s *signer) Sign(claim guard.Claim, audience string, expiry time.Time) (string, error) {
	return fmt.Sprintf("%s %v %s for %s until %s", claim.Resource, claim.Token, claim.LeaseID, audience, expiry.UTC().Format(time.RFC3339)), s.err
}

// TestSigned: every claim that is handed out comes with a proof of exactly this
// claim, for the identity's audience, until the lease's end. What cannot be
// signed is not handed out, and its lease is released.
func TestSigned(t *testing.T) {
	server, sign := memory.NewServer(), &signer{}
	who := func(*http.Request) (*lockhttp.Identity, error) {
		return &lockhttp.Identity{Subject: "a", AllResources: true, Audience: "ledger"}, nil
	}
	web, handler := serve(t, server.Issuer(), who, &lockhttp.Options{Signer: sign})
	proves := func(got response, body map[string]any) {
		t.Helper()
		until, err := time.Parse(time.RFC3339Nano, fmt.Sprint(body["expiresAt"]))
		if want := "r 1 L for ledger until " + until.UTC().Format(time.RFC3339); err != nil || body["proof"] != want {
			t.Errorf("the proof is %q, want %q", body["proof"], want)
		}
	}
	got := ask(t, web.URL, "", "POST", "/v1/locks/acquire", `{"resource":"r","leaseId":"L","ttlSeconds":60}`)
	proves(got, got.body)
	got = ask(t, web.URL, "", "POST", "/v1/locks/L/renew", `{"resource":"r","fencingToken":1,"ttlSeconds":600}`)
	proves(got, got.body)
	batch := `{"renewals":[{"resource":"r","leaseId":"L","fencingToken":1,"ttlSeconds":900}]}`
	got = ask(t, web.URL, "", "POST", "/v1/locks/renew", batch)
	proves(got, got.body["results"].([]any)[0].(map[string]any))
	if got = ask(t, web.URL, "", "POST", "/v1/locks/acquire", `{"resource":"r","ttlSeconds":60}`); got.body["proof"] != nil {
		t.Errorf("a refusal has a proof: %s", got.text)
	}

	sign.err = errors.New("the key is gone")
	got = ask(t, web.URL, "", "POST", "/v1/locks/acquire", `{"resource":"unsigned","ttlSeconds":60}`)
	if got.status != 500 || got.problem() != "outcome_unknown" || got.body["token"] != nil {
		t.Errorf("%+v", got)
	}
	if got = ask(t, web.URL, "", "POST", "/v1/locks/renew", batch); got.body["results"].([]any)[0].(map[string]any)["state"] != "outcome_unknown" {
		t.Errorf("%+v", got)
	}
	if err := handler.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if server.Last("unsigned") != 1 || server.Holder("unsigned") != nil {
		t.Errorf("held by %+v", server.Holder("unsigned"))
	}
}
