//go:build !linux

package lockclient

// systemClock returns Go's monotonic clock here. On some systems it stands still
// while the machine is suspended; see "Clocks" in the package documentation.
func systemClock() clock { return monotonicClock() }
