//go:build !linux

package driver

import "time"

// Now tells the time since some fixed moment, on the clock that holders count
// deadlines on: here Go's monotonic clock, which on some systems stands still
// while the machine is suspended. It is never zero.
func Now() time.Duration { return monotonic() }
