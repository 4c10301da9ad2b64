package driver

import (
	"testing"
	"time"
)

// TestNow: the clock advances with time, and never goes back.
func TestNow(t *testing.T) {
	for name, clock := range map[string]func() time.Duration{"the system's": Now, "Go's": monotonic} {
		outer := time.Now()
		began, goBegan := clock(), time.Now()
		if began == 0 {
			t.Errorf("%s: zero", name)
		}
		for last := began; time.Since(goBegan) < 50*time.Millisecond; {
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
