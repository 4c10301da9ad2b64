//go:build unix

package main

import (
	"os"
	"runtime"
	"syscall"
)

// peakMemory is the most resident memory that the process had (getrusage(2):
// kilobytes, but bytes on macOS).
func peakMemory(p *os.ProcessState) int64 {
	peak := int64(p.SysUsage().(*syscall.Rusage).Maxrss)
	if runtime.GOOS == "darwin" {
		return peak
	}
	return peak * 1024
}
