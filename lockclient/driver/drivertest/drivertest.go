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
// [Run] does both: each [Case] on the issuer as it is, then each [Mutant] of it,
// which at least one case must report. So a harness that proves nothing, such as
// one whose network does not hold requests, fails too.
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

// Case is one promise.
type Case struct {
	// Name says what is promised; Promise is its number in the design, such as
	// "P8", or empty.
	Name, Promise string
	// Check returns what is wrong.
	Check func(ctx context.Context, t testing.TB, h Harness) error
}

// Run checks every case on the issuer, and that every mutant of it is caught.
func Run(t *testing.T, start func(t *testing.T) Harness) {
	h := start(t)
	if h.Issuer == nil || h.Network == nil {
		t.Fatal("drivertest: Harness.Issuer and Harness.Network are required")
	}
	for _, c := range Cases() {
		t.Run(strings.TrimSpace(c.Promise+" "+c.Name), func(t *testing.T) {
			if h.Parallel {
				t.Parallel()
			}
			if err := check(t, c, h); err != nil {
				t.Error(err)
			}
		})
	}
	hasShorter := h.withDefaults().shorter(h.Issuer(t)) > 0
	for _, m := range Mutants() {
		if m.NeedsPurge && h.Purge == nil || m.NeedsTimeout && h.SessionBound || m.NeedsShorter && !hasShorter {
			continue
		}
		t.Run("broken: "+m.Name, func(t *testing.T) {
			if h.Parallel {
				t.Parallel()
			}
			for _, c := range Cases() {
				if c.Name != m.CaughtBy {
					continue
				}
				err := check(t, c, m.of(h))
				if err == nil {
					t.Errorf("%q does not report it", c.Name)
				} else {
					t.Logf("reported: %v", err)
				}
			}
		})
	}
}

// limit ends a case that hangs.
const limit = 3 * time.Minute

func (h Harness) withDefaults() Harness {
	if h.TTL == 0 {
		h.TTL = 10 * time.Second
	}
	if h.Pass == nil {
		h.Pass = time.Sleep
	}
	return h
}

func check(t *testing.T, c Case, h Harness) error {
	h = h.withDefaults()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	return c.Check(ctx, t, h)
}

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

func (h Harness) acquire(ctx context.Context, i driver.Issuer, resource, leaseID string) (guard.Claim, error) {
	ask := h.ask(resource, leaseID)
	if i.Limits().MetadataBytes > 0 {
		ask.Metadata = metadata
	}
	g, err := i.Acquire(ctx, ask)
	if err != nil {
		return guard.Claim{}, fmt.Errorf("acquire of %s under %s: %w", resource, leaseID, err)
	}
	if !g.Token.Valid() || g.From == 0 || g.TTL < 0 || g.TTL > h.TTL {
		return guard.Claim{}, fmt.Errorf("the grant is %+v", g)
	}
	return guard.Claim{Resource: resource, Token: g.Token, LeaseID: leaseID}, nil
}

func (h Harness) renew(ctx context.Context, i driver.Issuer, claims ...guard.Claim) []driver.Renewed {
	renewals, results := make([]driver.Renewal, len(claims)), make([]driver.Renewed, len(claims))
	for n, claim := range claims {
		renewals[n] = driver.Renewal{Claim: claim, TTL: h.TTL}
	}
	i.Renew(ctx, renewals, results)
	return results
}

// held returns what is wrong unless the claim's lease is the one that runs.
func (h Harness) held(ctx context.Context, i driver.Issuer, claim guard.Claim) error {
	_, err := i.Acquire(ctx, h.ask(claim.Resource, name("other")))
	var held *driver.HeldError
	if !errors.As(err, &held) {
		return fmt.Errorf("%s should be held under token %v; acquire says %v", claim.Resource, claim.Token, err)
	}
	return that(held.Token == claim.Token && held.LeaseID == claim.LeaseID, "held by %+v instead of %+v", held, claim)
}

// free returns what is wrong unless nobody has the lease.
func (h Harness) free(ctx context.Context, i driver.Issuer, resource string) error {
	w, err := i.Watch(ctx, driver.Watch{Resource: resource}, func() {})
	if err == nil {
		w.Stop()
		if w.Held != nil && w.Held.Remaining > 0 {
			return fmt.Errorf("%s should be free and is held under %s, token %v", resource, w.Held.LeaseID, w.Held.Token)
		}
	}
	claim, err := h.acquire(ctx, i, resource, name("probe"))
	if err != nil {
		return fmt.Errorf("should be free: %w", err)
	}
	_, err = i.Release(ctx, claim)
	return err
}

func that(ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf(format, args...)
}

func want(err, target error) error {
	return that(errors.Is(err, target), "got %v, want %v", err, target)
}

func now(i driver.Issuer) time.Duration {
	if c, ok := i.(driver.Clock); ok {
		return c.Now()
	}
	return driver.Now()
}
