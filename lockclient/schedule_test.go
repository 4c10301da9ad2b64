package lockclient

import (
	"context"
	"errors"
	"flag"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

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
