package lockclient

import (
	"syscall"
	"time"
	"unsafe"
)

// clockBoottime is CLOCK_BOOTTIME of clock_gettime(2). Unlike CLOCK_MONOTONIC,
// which Go's time package reads, it goes on while the machine is suspended.
const clockBoottime = 7

// systemClock returns the clock for a client. Times of two clocks cannot be
// compared.
func systemClock() clock {
	if _, ok := readBoottime(); ok {
		return boottime
	}
	return monotonicClock() // a sandbox that knows no CLOCK_BOOTTIME
}

func boottime() time.Duration {
	if now, ok := readBoottime(); ok {
		return now
	}
	return never
}

// readBoottime calls the kernel by hand: the standard library has no name for
// this clock. syscall.Timespec has the word size that this system call writes,
// on 32-bit systems too.
func readBoottime() (time.Duration, bool) {
	var ts syscall.Timespec
	_, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&ts)), 0)
	return time.Duration(ts.Nano()), errno == 0
}
