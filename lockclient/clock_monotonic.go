package lockclient

import "time"

// monotonicClock is the clock of Go's time package.
func monotonicClock() clock {
	start := time.Now()
	return func() time.Duration { return time.Since(start) }
}
