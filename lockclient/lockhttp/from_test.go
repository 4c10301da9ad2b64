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
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/driver/memory"
	"github.com/fencepost-go/fencepost/lockclient/lockhttp"
)

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
