package driver

import (
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// TestBoottime: the direct system call reads a clock that is never behind
// CLOCK_MONOTONIC, which differs from it by the time that the machine was
// suspended, and it is the clock in use.
func TestBoottime(t *testing.T) {
	const clockMonotonic = 1
	var ts syscall.Timespec
	if _, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockMonotonic, uintptr(unsafe.Pointer(&ts)), 0); errno != 0 {
		t.Fatal(errno)
	}
	now, ok := readBoottime()
	if !ok {
		t.Fatal("this kernel has no CLOCK_BOOTTIME")
	}
	// Years would mean the wall clock or a misread structure.
	if monotonic := time.Duration(ts.Nano()); now < monotonic || now-monotonic > 5*365*24*time.Hour {
		t.Errorf("CLOCK_BOOTTIME is %v, CLOCK_MONOTONIC %v", now, monotonic)
	}
	if got := Now(); got < now || got-now > time.Minute {
		t.Errorf("Now is %v, CLOCK_BOOTTIME was %v", got, now)
	}
	if n := testing.AllocsPerRun(100, func() { Now() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
