package lockclient

import (
	"context"
	"errors"
	"flag"
	"log/slog"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
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

var seedFlag = flag.Uint64("seed", 0, "seed of the random schedules; 0 draws one")

func seed(t *testing.T) uint64 {
	s := *seedFlag
	if s == 0 {
		s = rand.Uint64()
	}
	t.Logf("schedules from -seed=%d", s)
	return s
}

var schedules = byLength(250, 1000)

// TestLostBeforeExpiry is P7: in every schedule of hung, reset, refused and
// late renewals, and of clocks that drift by up to 0.1 %, the holder's context
// ends before the server would grant the lease to another, and the lease is not
// given up while renewals succeed. A deadline that counts from the answer, or
// that ignores the drift, must fail under the same schedules.
func TestLostBeforeExpiry(t *testing.T) {
	seed := seed(t)
	run := func(t *testing.T, lie func(sent, answered, ttl time.Duration) time.Duration) (violations int) {
		losses := 0
		for i := range schedules {
			rng := rand.New(rand.NewPCG(seed, uint64(i)))
			synctest.Test(t, func(t *testing.T) {
				margin, lost := schedule(t, rng, lie)
				if lost {
					losses++
				}
				if lost && margin < 0 {
					violations++
					if violations == 1 {
						t.Logf("schedule %d: the context ended %v after the lease", i, -margin)
					}
				}
			})
		}
		if losses < schedules*9/10 {
			t.Errorf("only %d of %d schedules lose the lease", losses, schedules)
		}
		return violations
	}
	t.Run("as built", func(t *testing.T) {
		n := run(t, func(sent, _, _ time.Duration) time.Duration { return sent })
		if n != 0 {
			t.Errorf("%d of %d schedules violate P7", n, schedules)
		}
	})
	for name, lie := range map[string]func(sent, answered, ttl time.Duration) time.Duration{
		"control: counted from the answer": func(_, answered, _ time.Duration) time.Duration { return answered },
		"control: no margin for drift":     func(sent, _, ttl time.Duration) time.Duration { return sent + (ttl+999)/1000 },
	} {
		t.Run(name, func(t *testing.T) {
			n := run(t, lie)
			t.Logf("caught in %d of %d schedules", n, schedules)
			if n == 0 {
				t.Error("the schedules do not tell the mutant")
			}
		})
	}
}

// schedule runs one Hold whose renewals fail for good at some time. It returns
// how long before the server's expiry the holder's context ended, and whether
// it did: some go on renewing by luck.
func schedule(t *testing.T, rng *rand.Rand, lie func(sent, answered, ttl time.Duration) time.Duration) (margin time.Duration, lost bool) {
	ttl := time.Duration(float64(MinTTL) * (1 + 600*rng.Float64()*rng.Float64()))
	drift := []int64{-1000, 1000, 0, rng.Int64N(2001) - 1000}[rng.IntN(4)]
	good := rng.IntN(20) // renewals that succeed first
	mode := fate(1 + rng.IntN(int(fates)-1))
	mixed := rng.IntN(2) == 0
	server := &simulated{rng: rng, ttl: ttl, simulation: simulation{drifting(drift)}}
	server.sentAt = func(sent, answered time.Duration) time.Duration { return lie(sent, answered, ttl) }
	server.fate = func(n int) fate {
		switch {
		case n < good:
			return prompt
		case mixed:
			return fate(rng.IntN(int(fates)))
		}
		return mode
	}
	client := simulate(t, server, nil)
	defer client.Close(context.Background())
	began := time.Now()
	err := client.Hold(t.Context(), "r", &AcquireOptions{TTL: ttl}, func(ctx context.Context) error {
		select {
		case <-ctx.Done():
		case <-time.After(100 * ttl):
			return nil
		}
		margin, lost = time.Until(server.expiry()), true
		if !errors.Is(context.Cause(ctx), ErrLeaseLost) {
			t.Errorf("the cause is %v", context.Cause(ctx))
		}
		return nil
	})
	if lost != errors.Is(err, ErrLeaseLost) {
		t.Errorf("Hold says %v", err)
	}
	if least := time.Duration(good) * ttl / 5; time.Since(began) < least {
		t.Errorf("the lease was given up after %v, with %d good renewals", time.Since(began), good)
	}
	return margin, lost
}

// TestOneFailureIsNoLoss: every second renewal fails, in every possible way,
// and the lease is held for a hundred TTLs.
func TestOneFailureIsNoLoss(t *testing.T) {
	seed := seed(t)
	for mode := late; mode < fates; mode++ {
		for i := range byLength(5, 20) {
			rng := rand.New(rand.NewPCG(seed, uint64(i)))
			synctest.Test(t, func(t *testing.T) {
				ttl := time.Duration(float64(time.Second) * (1 + 60*rng.Float64()))
				server := &simulated{rng: rng, ttl: ttl, simulation: simulation{drifting(0)}}
				server.sentAt = func(sent, _ time.Duration) time.Duration { return sent }
				server.fate = func(n int) fate {
					if n%2 == 1 {
						return prompt
					}
					return mode
				}
				client := simulate(t, server, nil)
				defer client.Close(context.Background())
				err := client.Hold(t.Context(), "r", &AcquireOptions{TTL: ttl}, func(ctx context.Context) error {
					select {
					case <-ctx.Done():
						return context.Cause(ctx)
					case <-time.After(100 * ttl):
						return nil
					}
				})
				if err != nil {
					t.Errorf("mode %d, schedule %d: %v", mode, i, err)
				}
			})
		}
	}
}

// TestTimersThatStandStill: while a machine is suspended the clock runs and
// timers stop. Valid knows at once; Done and the context within a second.
func TestTimersThatStandStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asleep atomic.Int64 // what the timers missed, in nanoseconds
		awake := drifting(0)
		clock := func() time.Duration { return awake() + time.Duration(asleep.Load()) }
		server := &simulated{rng: rand.New(rand.NewPCG(1, 1)), ttl: time.Minute, simulation: simulation{clock}}
		server.sentAt = func(sent, _ time.Duration) time.Duration { return sent }
		server.fate = func(int) fate { return prompt }
		client := simulate(t, server, nil)
		defer client.Close(context.Background())
		err := client.Hold(t.Context(), "r", &AcquireOptions{TTL: time.Minute}, func(ctx context.Context) error {
			lease := leaseFrom(ctx)
			time.Sleep(10 * time.Second)
			asleep.Add(int64(time.Hour))
			woke := time.Now()
			if n := len(lease.Done()); n != 0 || ctx.Err() != nil {
				t.Error("ended while asleep")
			}
			<-ctx.Done()
			if since := time.Since(woke); since > time.Second {
				t.Errorf("the context ended %v after waking", since)
			}
			return nil
		})
		if !errors.Is(err, ErrLeaseLost) {
			t.Errorf("got %v", err)
		}
		// Valid does not wait for a timer.
		lease, err := client.TryAcquire(t.Context(), "r", &AcquireOptions{TTL: time.Minute})
		if err != nil || !lease.Valid() {
			t.Fatal(err)
		}
		asleep.Add(int64(time.Hour))
		if lease.Valid() || lease.Remaining() != 0 {
			t.Error("valid after an hour asleep")
		}
	})
}

func TestTTLRule(t *testing.T) {
	const s, ms = time.Second, time.Millisecond
	for _, test := range []struct{ pause, renewal, margin, want time.Duration }{
		{0, 0, 0, MinTTL},
		{2 * s, 500 * ms, 10 * s, 12500 * ms},
		{2 * s, 500 * ms, 0, 3750 * ms}, // the margin is less than the renewal interval
		{-s, 500 * ms, s, 1500 * ms},
		{time.Microsecond, s, 2 * s, 3001 * ms},
	} {
		got := RecommendTTL(Delays{test.pause, test.renewal, test.margin})
		if got != test.want {
			t.Errorf("%+v: got %v", test, got)
		}
	}
	for range 1000 {
		p, r, m := rand.N(MaxTTL/4), rand.N(MaxTTL/4), rand.N(MaxTTL/4)
		ttl := RecommendTTL(Delays{p, r, m})
		// Renewed every third of it, two thirds are left when a renewal is due.
		suffices := func(ttl time.Duration) bool { return ttl >= p+r+m && ttl-ttl/3 >= p+r }
		if !suffices(ttl) || suffices(ttl-5*ms) && ttl > MinTTL {
			t.Fatalf("%v, %v, %v: %v", p, r, m, ttl)
		}
	}
	const forever = 1<<63 - 1
	if RecommendTTL(Delays{forever, forever, forever}) < MaxTTL {
		t.Error("a sum overflowed")
	}
}

// TestMarginLow: the warning comes once, when the margin is used up and before the lease is
// lost, and again after a renewal that came in time.
func TestMarginLow(t *testing.T) {
	for name, test := range map[string]struct {
		fates []fate // of the first renewals; the others are prompt
		warns int
	}{
		"healthy":     {nil, 0},
		"one failure": {[]fate{refusedNow}, 0},
		"slow":        {[]fate{hungBefore, resetAfter, prompt, prompt, hungBefore, hungBefore, hungBefore}, 1},
		"slow twice":  {[]fate{hungBefore, hungBefore, hungBefore, prompt, prompt, hungBefore, hungBefore, hungBefore}, 2},
	} {
		testkit.Bubble(t, name, func(t *testing.T) {
			const ttl = 30 * time.Second
			server := &simulated{rng: rand.New(rand.NewPCG(1, 1)), ttl: ttl, simulation: simulation{drifting(0)}}
			server.sentAt = func(sent, _ time.Duration) time.Duration { return sent }
			server.fate = func(n int) fate {
				if n < len(test.fates) {
					return test.fates[n]
				}
				return prompt
			}
			rec := &recorder{}
			client := simulate(t, server, &Options{Logger: slog.New(slog.NewJSONHandler(rec, nil))})
			defer client.Close(context.Background())
			err := client.Hold(t.Context(), "r", &AcquireOptions{TTL: ttl}, func(ctx context.Context) error {
				time.Sleep(10 * ttl)
				return context.Cause(ctx)
			})
			testkit.Check(t, err)
			synctest.Wait()
			_, lines := rec.Take(t)
			warned := 0
			for _, line := range lines {
				if line["msg"] == "lock_margin_low" {
					warned++
					if left := line["remainingSeconds"].(float64); left <= 0 || left >= ttl.Seconds()/3 {
						t.Errorf("told %v", line)
					}
				}
			}
			if warned != test.warns {
				t.Errorf("warned %d times, want %d", warned, test.warns)
			}
		})
	}
}
