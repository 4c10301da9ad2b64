// Package drivertest defines what an issuer is: a suite that every
// driver.Issuer must pass on its real engine, and broken issuers that must fail
// it there.
//
//	func TestConformance(t *testing.T) {
//		drivertest.Run(t, func(t *testing.T) drivertest.Harness {
//			server := startEngine(t)
//			return drivertest.Harness{
//				Issuer: func(t testing.TB) driver.Issuer { return connect(t, server.Addr()) },
//				Network: func(t testing.TB) (driver.Issuer, drivertest.Network) {
//					proxy := drivertest.NewProxy(t, "tcp", server.Addr())
//					return connect(t, proxy.Addr()), proxy
//				},
//				TTL: 10 * time.Second,
//			}
//		})
//	}
//
// [Run] does both: each case on the issuer as it is, then the case that must report it on
// each broken form of it. So a harness that proves nothing, such as
// one whose network does not hold requests, fails too. cases.go has the cases, broken.go
// the broken issuers.
//
// # Compatibility
//
// Until version 1 exported names may change between minor versions, and cases
// may be added.
package drivertest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

// Harness is an engine under test. Resources have new names in every case, so
// one engine is enough for all.
type Harness struct {
	// Issuer connects to the engine as another process does, and closes with
	// the test. Required.
	Issuer func(t testing.TB) driver.Issuer
	// Network connects through a network that can hold requests; [Proxy] is
	// one. Required: without it half of P8 is not tested.
	Network func(t testing.TB) (driver.Issuer, Network)
	// Pass lets d pass on the engine's clock and the holders'; nil sleeps. With
	// it a slow machine cannot make a case fail.
	Pass func(d time.Duration)
	// TTL is the shortest that the engine keeps exactly and that a busy machine
	// keeps alive; 0 means ten seconds. Where Pass is nil, the suite sleeps for
	// about four of it.
	TTL time.Duration
	// Slack is how long after its timeout a late acquire may still take effect,
	// as the issuer's documentation says; 0 if it may not.
	Slack time.Duration
	// SessionBound says that a late acquire is refused because its session is
	// over, whatever Request.Timeout was.
	SessionBound bool
	// Parallel runs the cases in parallel, for an engine that runs in real time:
	// most of a case is waiting.
	Parallel bool
	// Purge deletes what the engine keeps of free resources; nil if it keeps
	// nothing or deletes nothing.
	Purge func(t testing.TB)
}

// Network can hold requests in transit.
type Network interface {
	// Hold holds requests from now on, including those whose sender gives up or
	// closes its connection, and refuses new connections.
	Hold()
	// Holding reports whether a request is being held.
	Holding() bool
	// Deliver lets requests pass again. It returns when those that were held
	// have been carried out or refused.
	Deliver()
}

// Run checks every case on the issuer, and that every broken form of it is caught.
func Run(t *testing.T, start func(t *testing.T) Harness) {
	h := start(t)
	if h.Issuer == nil || h.Network == nil {
		t.Fatal("drivertest: Harness.Issuer and Harness.Network are required")
	}
	if h.TTL == 0 {
		h.TTL = 10 * time.Second
	}
	if h.Pass == nil {
		h.Pass = time.Sleep
	}
	unbroken := verdicts()
	for _, c := range cases {
		t.Run(strings.TrimSpace(c.promise+" "+c.name), func(t *testing.T) {
			if h.Parallel {
				t.Parallel()
			}
			if err := unbroken[c.name].of(t, h); err != nil {
				t.Error(err)
			}
		})
	}
	hasShorter := h.shorter(h.Issuer(t)) > 0
	for _, b := range faults {
		if b.needs == purges && h.Purge == nil || b.needs == timeouts && h.SessionBound || b.needs == shorterTTLs && !hasShorter {
			continue
		}
		t.Run("broken: "+b.name, func(t *testing.T) {
			if h.Parallel {
				t.Parallel()
			}
			reported, err := b.try(t, h, unbroken[b.caughtBy])
			if err != nil {
				t.Error(err)
			}
			t.Logf("reported: %v", reported)
		})
	}
}

// verdict is what a case says of the issuer as it is. Whoever asks first runs the case: it
// may be a fault that is run alone, or at the same time as the case.
type verdict struct {
	testCase
	once sync.Once
	err  error
}

func verdicts() map[string]*verdict {
	all := map[string]*verdict{}
	for _, c := range cases {
		all[c.name] = &verdict{testCase: c}
	}
	return all
}

func (v *verdict) of(t *testing.T, h Harness) error {
	v.once.Do(func() {
		v.err = errors.New("the case was ended before it had a result") // by a harness that calls t.Fatal
		v.err = v.testCase.of(t, h)
	})
	return v.err
}

// try returns what the fault's case reports of the broken issuer. It is an error if the case
// reports nothing, or reports something of the unbroken issuer too: then any issuer that
// always fails would count as caught.
func (f fault) try(t *testing.T, h Harness, unbroken *verdict) (reported, err error) {
	if err := unbroken.of(t, h); err != nil {
		return nil, fmt.Errorf("%q fails without the fault, so that it shows nothing with it: %w", f.caughtBy, err)
	}
	if reported = unbroken.testCase.of(t, f.in(h)); reported == nil {
		err = fmt.Errorf("%q does not report it", f.caughtBy)
	}
	return reported, err
}

// limit ends a case that hangs.
const limit = 3 * time.Minute

// testCase is one promise: what is promised, its number in the design, such as "P8", or empty,
// and what ends with [run.must] if it is broken.
type testCase struct {
	name, promise string
	check         func(x *run)
}

// of returns what is wrong with the harness's issuer.
func (c testCase) of(t *testing.T, h Harness) (err error) {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			found, ok := p.(finding)
			if !ok {
				panic(p)
			}
			err = found.error
		}
	}()
	c.check(&run{h, ctx, t})
	return nil
}

// run is what a case works with. Its methods end the case, on its own goroutine, at the first
// thing that is wrong.
type run struct {
	Harness
	ctx context.Context
	t   testing.TB
}

type finding struct{ error }

func (x *run) must(ok bool, format string, args ...any) {
	if !ok {
		panic(finding{fmt.Errorf(format, args...)})
	}
}

func (x *run) issuer() driver.Issuer { return x.Issuer(x.t) }

// numbers makes names that no earlier case used.
var numbers atomic.Int64

func name(kind string) string {
	return fmt.Sprintf("drivertest:%s:%d-%d", kind, time.Now().UnixNano(), numbers.Add(1))
}

// ask makes a request that has plenty of time.
func (h Harness) ask(resource, leaseID string) driver.Request {
	return driver.Request{Resource: resource, LeaseID: leaseID, Owner: "owner of " + leaseID, TTL: h.TTL, Timeout: time.Minute}
}

// shorter is a TTL that is over, with a quarter to spare, well within h.TTL; 0 if
// the engine has none.
func (h Harness) shorter(i driver.Issuer) time.Duration {
	l := i.Limits()
	short := h.TTL / 4
	if l.TTLStep > 0 {
		short -= short % l.TTLStep
	}
	if short = max(short, l.MinTTL, time.Millisecond); short > h.TTL/2 {
		return 0
	}
	return short
}

// metadata is that of every lease, where the engine stores it.
const metadata = "a test"

// acquire is granted the resource under the lease ID.
func (x *run) acquire(i driver.Issuer, resource, leaseID string) guard.Claim {
	ask := x.ask(resource, leaseID)
	if i.Limits().MetadataBytes > 0 {
		ask.Metadata = metadata
	}
	g, err := i.Acquire(x.ctx, ask)
	x.must(err == nil, "acquire of %s under %s: %w", resource, leaseID, err)
	x.must(g.Token.Valid() && g.From != 0 && g.TTL >= 0 && g.TTL <= x.TTL, "the grant is %+v", g)
	return guard.Claim{Resource: resource, Token: g.Token, LeaseID: leaseID}
}

func (x *run) acquireNew(i driver.Issuer, kind string) guard.Claim {
	return x.acquire(i, name(kind), name("id"))
}

func (x *run) renew(i driver.Issuer, claims ...guard.Claim) []driver.Renewed {
	renewals, results := make([]driver.Renewal, len(claims)), make([]driver.Renewed, len(claims))
	for n, claim := range claims {
		renewals[n] = driver.Renewal{Claim: claim, TTL: x.TTL}
	}
	i.Renew(x.ctx, renewals, results)
	return results
}

// renewed renews one lease, which has that outcome.
func (x *run) renewed(i driver.Issuer, claim guard.Claim, want driver.RenewState) driver.Renewed {
	got := x.renew(i, claim)[0]
	x.must(got.State == want && got.Err == nil && (want == driver.Over || got.From != 0 && got.TTL >= 0 && got.TTL <= x.TTL),
		"a renewal of %+v, which should have the state %d: %+v", claim, want, got)
	return got
}

// release frees the lease of the claim, or says that it is over.
func (x *run) release(i driver.Issuer, claim guard.Claim, want bool) {
	freed, err := i.Release(x.ctx, claim)
	x.must(err == nil, "a release of %+v: %w", claim, err)
	x.must(freed == want, "a release of %+v says freed: %v", claim, freed)
}

// holds returns what is wrong unless the claim's lease is the one that runs.
func (x *run) holds(i driver.Issuer, claim guard.Claim) error {
	_, err := i.Acquire(x.ctx, x.ask(claim.Resource, name("other")))
	var held *driver.HeldError
	if !errors.As(err, &held) {
		return fmt.Errorf("%s should be held under token %v; acquire says %v", claim.Resource, claim.Token, err)
	}
	if held.Token != claim.Token || held.LeaseID != claim.LeaseID {
		return fmt.Errorf("held by %+v instead of %+v", held, claim)
	}
	return nil
}

func (x *run) held(i driver.Issuer, claim guard.Claim) {
	err := x.holds(i, claim)
	x.must(err == nil, "%w", err)
}

// free says that nobody has the lease.
func (x *run) free(i driver.Issuer, resource string) {
	w, err := i.Watch(x.ctx, driver.Watch{Resource: resource}, func() {})
	if err == nil {
		w.Stop()
		x.must(w.Held == nil || w.Held.Remaining <= 0, "%s should be free, and the watch says %+v", resource, w.Held)
	}
	i.Release(x.ctx, x.acquire(i, resource, name("probe")))
}

func now(i driver.Issuer) time.Duration {
	if c, ok := i.(driver.Clock); ok {
		return c.Now()
	}
	return driver.Now()
}
