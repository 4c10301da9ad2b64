package lockhttp_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/driver/memory"
	"github.com/fencepost-go/fencepost/lockclient/lockhttp"
)

// signer returns what it is asked to sign as text, or fails if told to.
type signer struct{ err error }

func (s *signer) Sign(claim guard.Claim, audience string, expiry time.Time) (string, error) {
	return fmt.Sprintf("%s %v %s for %s until %s", claim.Resource, claim.Token, claim.LeaseID, audience, expiry.UTC().Format(time.RFC3339)), s.err
}

// TestSigned: every claim that is returned comes with a proof of exactly this
// claim, for the identity's audience, until the lease's end. A claim that
// cannot be signed is not returned, and its lease is released.
func TestSigned(t *testing.T) {
	t.Parallel()
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
	if got = ask(t, web.URL, "", "POST", "/v1/locks/acquire", `{"resource":"r","ttlSeconds":60}`); got.body["proof"] != nil {
		t.Errorf("a refusal has a proof: %s", got.text)
	}

	sign.err = errors.New("the key is gone")
	got = ask(t, web.URL, "", "POST", "/v1/locks/acquire", `{"resource":"unsigned","ttlSeconds":60}`)
	if got.status != 500 || got.problem() != "outcome_unknown" || got.body["token"] != nil || got.body["leaseId"] != nil {
		t.Errorf("%+v", got)
	}
	if got = ask(t, web.URL, "", "POST", "/v1/locks/L/renew", `{"resource":"r","ttlSeconds":60}`); got.status != 500 || got.problem() != "outcome_unknown" || got.body["token"] != nil {
		t.Errorf("%+v", got)
	}
	testkit.Check(t, handler.Close(t.Context()))
	if server.Last("unsigned") != 1 || server.Holder("unsigned") != nil {
		t.Errorf("held by %+v", server.Holder("unsigned"))
	}
}

// TestReadySigns: a server that can sign nothing is not ready, even where another server's
// probe holds the lease.
func TestReadySigns(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err    error
		status int
	}{{nil, 200}, {errors.New("the key is gone"), 503}} {
		server := memory.NewServer()
		server.Steal("fencepost-readyz", "readyz", time.Minute)
		web, _ := serve(t, server.Issuer(), everybody, &lockhttp.Options{Signer: &signer{c.err}})
		if got := ask(t, web.URL, "", "GET", "/readyz", ""); got.status != c.status {
			t.Errorf("%v: %d %s", c.err, got.status, got.text)
		}
	}
}

// TestProofOfClient: the Go client returns the latest proof of a claim, and
// none for a claim that it does not hold.
func TestProofOfClient(t *testing.T) {
	t.Parallel()
	sign := &signer{}
	who := func(*http.Request) (*lockhttp.Identity, error) {
		return &lockhttp.Identity{Subject: "a", AllResources: true, Audience: "ledger"}, nil
	}
	web, _ := serve(t, memory.NewServer().Issuer(), who, &lockhttp.Options{Signer: sign})
	issuer := connect(t, web.URL).(*lockhttp.Issuer)
	locks, err := lockclient.New(issuer, "worker-a", &lockclient.Options{Logger: testkit.Logger(t)})
	testkit.Must(t, err)
	defer locks.Close(t.Context())
	lease, err := locks.Acquire(t.Context(), "r", &lockclient.AcquireOptions{TTL: time.Minute})
	testkit.Must(t, err)
	claim := lease.Claim()
	prove := func(claim guard.Claim) (until time.Time) {
		t.Helper()
		proof, err := issuer.Proof(t.Context(), claim)
		text, ok := strings.CutPrefix(proof, fmt.Sprintf("r 1 %s for ledger until ", claim.LeaseID))
		until, wrong := time.Parse(time.RFC3339, text)
		if err != nil || !ok || wrong != nil {
			t.Fatalf("%q, %v", proof, err)
		}
		return until
	}
	first := prove(claim)
	var renewed [1]driver.Renewed
	if issuer.Renew(t.Context(), []driver.Renewal{{Claim: claim, TTL: 10 * time.Minute}}, renewed[:]); renewed[0].State != driver.Extended {
		t.Fatal(renewed)
	}
	if second := prove(claim); second.Sub(first) < 8*time.Minute {
		t.Errorf("the proof ends at %v, after the renewal at %v", first, second)
	}
	missing := func(what string, issuer *lockhttp.Issuer, claim guard.Claim) {
		t.Helper()
		if proof, err := issuer.Proof(t.Context(), claim); proof != "" || !errors.Is(err, guard.ErrMissing) {
			t.Errorf("%s: %q, %v", what, proof, err)
		}
	}
	for what, other := range map[string]guard.Claim{
		"another resource": {Resource: "s", Token: claim.Token, LeaseID: claim.LeaseID},
		"another token":    {Resource: "r", Token: claim.Token + 1, LeaseID: claim.LeaseID},
		"another lease":    {Resource: "r", Token: claim.Token, LeaseID: "L"},
	} {
		missing(what, issuer, other)
	}
	missing("another client", connect(t, web.URL).(*lockhttp.Issuer), claim)
	testkit.Must(t, lease.Release(context.WithoutCancel(t.Context())))
	prove(claim) // a late holder presents it, and the resource says that it is stale

	plain, _ := serve(t, memory.NewServer().Issuer(), who, nil)
	issuer = connect(t, plain.URL).(*lockhttp.Issuer)
	if locks, err = lockclient.New(issuer, "worker-a", &lockclient.Options{Logger: testkit.Logger(t)}); err != nil {
		t.Fatal(err)
	}
	defer locks.Close(t.Context())
	if lease, err = locks.Acquire(t.Context(), "r", &lockclient.AcquireOptions{TTL: time.Minute}); err != nil {
		t.Fatal(err)
	}
	missing("a server that signs nothing", issuer, lease.Claim())
}

// TestNoAudience: an identity for which nothing can be signed is granted nothing,
// no token is spent, and the log says what is missing.
func TestNoAudience(t *testing.T) {
	t.Parallel()
	server, log := memory.NewServer(), &strings.Builder{}
	web, handler := serve(t, server.Issuer(), everybody, &lockhttp.Options{Signer: &signer{}, Logger: slog.New(slog.NewTextHandler(log, nil))})
	got := ask(t, web.URL, "", "POST", "/v1/locks/acquire", `{"resource":"r","ttlSeconds":60}`)
	if got.status != 500 || got.problem() != "setup" || server.Last("r") != 0 {
		t.Errorf("%+v, last token %v", got, server.Last("r"))
	}
	if got := ask(t, web.URL, "", "POST", "/v1/locks/L/renew", `{"resource":"r","fencingToken":1,"ttlSeconds":60}`); got.status != 500 || got.problem() != "setup" {
		t.Errorf("%+v", got)
	}
	handler.Close(t.Context()) // waits until the log is written
	if !strings.Contains(log.String(), "Identity.Audience") {
		t.Errorf("the log: %s", log)
	}
}
