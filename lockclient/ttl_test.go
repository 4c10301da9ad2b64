package lockclient

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost-go/fencepost/internal/testkit"
)

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
