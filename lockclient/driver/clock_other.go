//go:build !linux

package driver

import "time"

// Now returns the time since some fixed moment, on the clock that holders use
// for deadlines: here Go's monotonic clock, which on some systems stops while
// the machine is suspended. It is never zero.
func Now() time.Duration { return monotonic() }
