package driver

import (
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// clockBoottime is CLOCK_BOOTTIME of clock_gettime(2). Unlike CLOCK_MONOTONIC,
// which Go's time package reads, it keeps running while the machine is
// suspended.
const clockBoottime = 7

// hasBoottime is what the first call found: a sandbox may not have
// CLOCK_BOOTTIME, and times of two clocks cannot be compared.
var hasBoottime = sync.OnceValue(func() bool {
	_, ok := readBoottime()
	return ok
})

// Now returns the time since some fixed moment, on the clock that holders use
// for deadlines: CLOCK_BOOTTIME. It is never zero. If the clock fails after it
// has worked before, Now is past every deadline.
func Now() time.Duration {
	if !hasBoottime() {
		return monotonic()
	}
	if now, ok := readBoottime(); ok {
		return now
	}
	return never
}

// readBoottime calls the kernel directly: the standard library does not offer
// this clock. syscall.Timespec has the word size that this system call writes, on
// 32-bit systems too. The call does not block, so the scheduler need not know.
func readBoottime() (time.Duration, bool) {
	var ts syscall.Timespec
	_, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&ts)), 0)
	return time.Duration(ts.Nano()), errno == 0
}
