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
		ask(t, web.URL, "", "GET", "/readyz", "").want(t, c.status)
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
	ask(t, web.URL, "", "POST", "/v1/locks/L/renew", `{"resource":"r","fencingToken":1,"ttlSeconds":60}`).want(t, 500, "setup")
	handler.Close(t.Context()) // waits until the log is written
	if !strings.Contains(log.String(), "Identity.Audience") {
		t.Errorf("the log: %s", log)
	}
}

// early is an issuer that dates its grants and renewals back, as one does that
// grants under an older lease of its engine.
type early struct {
	*memory.Issuer
	by time.Duration
}

func (e *early) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	g, err := e.Issuer.Acquire(ctx, r)
	g.From -= e.by
	return g, err
}

func (e *early) Renew(ctx context.Context, renewals []driver.Renewal, results []driver.Renewed) {
	e.Issuer.Renew(ctx, renewals, results)
	for n := range results {
		results[n].From -= e.by
	}
}

// TestDatedBack: the issuer counts a lease from four seconds before the request.
// Nobody is told that it lasts longer than that: neither the Go client, nor the
// reader of ttlSeconds and expiresAt, nor who gets the proof.
func TestDatedBack(t *testing.T) {
	t.Parallel()
	who := func(*http.Request) (*lockhttp.Identity, error) {
		return &lockhttp.Identity{Subject: "a", AllResources: true, Audience: "ledger"}, nil
	}
	web, _ := serve(t, &early{memory.NewServer().Issuer(), 4 * time.Second}, who, &lockhttp.Options{Signer: &signer{}})
	client := connect(t, web.URL)
	before := driver.Now()
	g, err := client.Acquire(t.Context(), driver.Request{Resource: "r", LeaseID: "L", Owner: "o", TTL: time.Minute, Timeout: time.Minute})
	if end := g.From + g.TTL - before; err != nil || end > 57*time.Second {
		t.Errorf("the client counts on another %v: %v", end, err)
	}
	before = driver.Now()
	var renewed [1]driver.Renewed
	client.Renew(t.Context(), []driver.Renewal{{Claim: guard.Claim{Resource: "r", LeaseID: "L", Token: g.Token}, TTL: 2 * time.Minute}}, renewed[:])
	if end := renewed[0].From + renewed[0].TTL - before; renewed[0].State != driver.Extended || end > 117*time.Second {
		t.Errorf("after the renewal the client counts on another %v: %+v", end, renewed[0])
	}
	for _, c := range []struct{ path, body string }{
		{"/v1/locks/acquire", `{"resource":"s","leaseId":"L","ttlSeconds":60}`},
		{"/v1/locks/L/renew", `{"resource":"s","fencingToken":1,"ttlSeconds":60}`},
	} {
		got := ask(t, web.URL, "", "POST", c.path, c.body)
		end, err := time.Parse(time.RFC3339Nano, got.str("expiresAt"))
		if ttl, _ := got.body["ttlSeconds"].(float64); err != nil || ttl <= 0 || ttl > 57 || time.Until(end) > 57*time.Second {
			t.Errorf("%s: %s", c.path, got.text)
		}
		if proof := got.str("proof"); !strings.HasSuffix(proof, "until "+end.UTC().Format(time.RFC3339)) {
			t.Errorf("%s: the proof is %q", c.path, proof)
		}
	}
}

// ticking is an issuer whose TTLs are whole seconds.
type ticking struct{ *early }

func (t ticking) Limits() driver.Limits {
	l := t.early.Limits()
	l.TTLStep = time.Second
	return l
}

// TestDatedBackIsRenewed: a lease that the issuer dates back is renewed for the TTL
// that was asked for, not for what was left of it, which the server would refuse.
func TestDatedBackIsRenewed(t *testing.T) {
	t.Parallel()
	web, _ := serve(t, ticking{&early{memory.NewServer().Issuer(), 200 * time.Millisecond}}, everybody, nil)
	client, err := lockclient.New(connect(t, web.URL), "o", &lockclient.Options{Logger: testkit.Logger(t)})
	testkit.Must(t, err)
	defer client.Close(context.Background())
	lease, err := client.TryAcquire(t.Context(), "r", &lockclient.AcquireOptions{TTL: time.Minute})
	testkit.Must(t, err)
	for range 3 {
		if left := lease.Remaining(); left > time.Minute-200*time.Millisecond {
			t.Errorf("another %v", left)
		}
		testkit.Must(t, lease.Renew(t.Context()))
	}
	if ttl := lease.TTL(); ttl != time.Minute {
		t.Errorf("the TTL is %v", ttl)
	}
}

// TestNothingLeft: a lease that is over by the time that the issuer counts from is
// neither granted nor extended.
func TestNothingLeft(t *testing.T) {
	t.Parallel()
	server := memory.NewServer()
	issuer := &early{Issuer: server.Issuer()}
	web, handler := serve(t, issuer, everybody, nil)
	client := connect(t, web.URL)
	g, err := client.Acquire(t.Context(), driver.Request{Resource: "r", LeaseID: "L", Owner: "o", TTL: time.Minute, Timeout: time.Minute})
	testkit.Must(t, err)
	issuer.by = time.Minute
	var renewed [1]driver.Renewed
	client.Renew(t.Context(), []driver.Renewal{{Claim: guard.Claim{Resource: "r", LeaseID: "L", Token: g.Token}, TTL: time.Minute}}, renewed[:])
	if renewed[0].State != driver.Unknown || !errors.Is(renewed[0].Err, guard.ErrOutcomeUnknown) {
		t.Errorf("%+v", renewed[0])
	}
	got := ask(t, web.URL, "", "POST", "/v1/locks/acquire", `{"resource":"s","ttlSeconds":60}`)
	if got.status != 500 || got.problem() != "outcome_unknown" {
		t.Errorf("%s", got.text)
	}
	testkit.Check(t, handler.Close(t.Context()))
	if h := server.Holder("s"); h != nil { // nobody knows its lease ID
		t.Errorf("held by %+v", h)
	}
}

// TestIssuersClock: the server measures with its issuer's clock whether a grant is
// over when it arrives.
func TestIssuersClock(t *testing.T) {
	t.Parallel()
	server := memory.NewServer()
	issuer := &hooked{Issuer: server.Issuer()}
	web, _ := serve(t, issuer, everybody, nil)
	for _, slow := range []bool{false, true} {
		issuer.after = func() {
			if slow {
				server.Move(time.Minute)
			}
		}
		got := ask(t, web.URL, "", "POST", "/v1/locks/acquire", fmt.Sprintf(`{"resource":"%v","leaseId":"L","ttlSeconds":60}`, slow))
		if want := map[bool]int{false: 200, true: 500}[slow]; got.status != want {
			t.Errorf("slow: %v: %s", slow, got.text)
		}
	}
}
