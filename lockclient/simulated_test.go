package lockclient

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/pause"
)

// simulated is a server with one lease and a network to and from it, for
// bubbles of testing/synctest. Its clock is the bubble's. What happens to a
// request is drawn from rng: that is a schedule.
type simulated struct {
	rng *rand.Rand
	ttl time.Duration
	simulation
	// fate draws what happens to the n-th renewal.
	fate func(n int) fate
	// sentAt returns the moment of sending as reported; mutants lie.
	sentAt func(sent, answered time.Duration) time.Duration

	mu      sync.Mutex
	renewal int
	expires time.Time // by the server's clock; zero if free
}

// fate is what happens to one request.
type fate uint8

const (
	prompt      fate = iota
	late             // the answer, or the request, takes up to two TTLs
	hungBefore       // never reaches the server
	hungAfter        // is carried out, and the answer never comes
	resetBefore      // the connection breaks before the server sees it
	resetAfter       // is carried out, and the connection breaks
	refusedNow       // the server refuses
	fates
)

var errSimulated = errors.New("simulated")

// delay draws a time on the network: of any order of magnitude from a
// microsecond up to a twentieth of the TTL, since the margins differ by orders
// of magnitude.
func (s *simulated) delay() time.Duration {
	low, high := math.Log(float64(time.Microsecond)), math.Log(float64(s.ttl/20))
	return time.Duration(math.Exp(low + s.rng.Float64()*(high-low)))
}

// Acquire implements driver.Issuer.
func (s *simulated) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	sent := s.clock()
	time.Sleep(s.delay())
	s.mu.Lock()
	at := time.Now()
	s.expires = at.Add(s.ttl)
	s.mu.Unlock()
	time.Sleep(s.delay())
	return driver.Grant{Token: 1, AcquiredAt: at, From: s.sentAt(sent, s.clock())}, nil
}

// Renew implements driver.Issuer.
func (s *simulated) Renew(ctx context.Context, renewals []driver.Renewal, results []driver.Renewed) {
	sent, held, err := s.renew(ctx, renewals[0].Claim, renewals[0].TTL)
	switch {
	case err != nil:
		results[0].Err = err
	case held:
		results[0] = driver.Renewed{State: driver.Extended, From: sent}
	default:
		results[0] = driver.Renewed{State: driver.Over}
	}
}

func (s *simulated) renew(ctx context.Context, claim guard.Claim, ttl time.Duration) (time.Duration, bool, error) {
	s.mu.Lock()
	n := s.renewal
	s.renewal++
	f := s.fate(n)
	before, after := s.delay(), s.delay()
	if f == late {
		if extra := time.Duration(s.rng.Int64N(int64(2 * ttl))); s.rng.IntN(2) == 0 {
			before += extra
		} else {
			after += extra
		}
	}
	s.mu.Unlock()
	linger := ctx
	sent := s.clock()
	unknown := guard.OutcomeUnknown("renew", claim, errSimulated)
	held := true
	carryOut := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if now := time.Now(); now.Before(s.expires) {
			s.expires = now.Add(ttl)
		} else {
			held = false
		}
	}
	if f == hungBefore {
		<-linger.Done()
		return 0, false, unknown
	}
	if !pause.For(linger, before, nil) {
		return 0, false, unknown
	}
	switch f {
	case resetBefore:
		return 0, false, unknown
	case refusedNow:
		return 0, false, guard.Unavailable("renew", claim, errSimulated)
	}
	carryOut()
	if f == hungAfter {
		<-linger.Done()
		return 0, false, unknown
	}
	if !pause.For(linger, after, nil) || f == resetAfter {
		return 0, false, unknown
	}
	return s.sentAt(sent, s.clock()), held, nil
}

// Release implements driver.Issuer.
func (s *simulated) Release(context.Context, guard.Claim) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	freed := !s.expires.IsZero()
	s.expires = time.Time{}
	return freed, nil
}

func (s *simulated) expiry() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.expires
}

// drifting returns a clock that differs from the bubble's by the given rate.
func drifting(partsPerMillion int64) func() time.Duration {
	start := time.Now()
	return func() time.Duration {
		passed := time.Since(start)
		return passed + passed/1e6*time.Duration(partsPerMillion) + passed%1e6*time.Duration(partsPerMillion)/1e6
	}
}
