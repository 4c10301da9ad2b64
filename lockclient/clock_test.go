package lockclient

import (
	"testing"
	"time"
)

// TestSystemClock: it goes with the time, and never back.
func TestSystemClock(t *testing.T) {
	for name, clock := range map[string]clock{"system": systemClock(), "monotonic": monotonicClock()} {
		outer := time.Now()
		began, goBegan := clock(), time.Now()
		last := began
		for time.Since(goBegan) < 50*time.Millisecond {
			now := clock()
			if now < last {
				t.Fatalf("%s: %v after %v", name, now, last)
			}
			last = now
		}
		goPassed := time.Since(goBegan)
		passed := clock() - began
		// One interval is within the other, however late this goroutine runs.
		if goOuter := time.Since(outer); passed < goPassed || passed > goOuter {
			t.Errorf("%s: %v passed, by Go's clock %v to %v", name, passed, goPassed, goOuter)
		}
	}
}

func TestDeadline(t *testing.T) {
	for _, test := range []struct{ sent, ttl, want time.Duration }{
		{0, time.Second, 999 * time.Millisecond},
		{5, 1000, 1004},
		{5, 1001, 1004}, // the margin is rounded up
		{time.Hour, MaxTTL, time.Hour + MaxTTL - 86400*time.Millisecond},
	} {
		if got := deadline(test.sent, test.ttl); got != test.want {
			t.Errorf("sent %d, TTL %d: %d, want %d", test.sent, test.ttl, got, test.want)
		}
	}
	if never < deadline(time.Since(time.Time{}), MaxTTL) {
		t.Error("a clock that fails is not past every deadline")
	}
}

func BenchmarkValid(b *testing.B) {
	client := newClient(nil, "o", settings{}, systemClock(), events{})
	lease := newLease(client, request{resource: "r"}.claim(), answer{acquiredAt: time.Now()}, MaxTTL, client.clock()+MaxTTL)
	for b.Loop() {
		if !lease.Valid() {
			b.Fatal("not valid")
		}
	}
}
