//go:build !unix

package main

import "os"

// peakMemory is not available on this system.
func peakMemory(*os.ProcessState) int64 { return 0 }
