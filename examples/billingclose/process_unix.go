//go:build unix

package main

import (
	"os"
	"syscall"
)

func suspend(p *os.Process) error { return p.Signal(syscall.SIGSTOP) }

func resume(p *os.Process) error { return p.Signal(syscall.SIGCONT) }

// suspended asks the kernel. WUNTRACED reports a stopped child and leaves it
// waitable.
func suspended(p *os.Process) bool {
	var status syscall.WaitStatus
	pid, err := syscall.Wait4(p.Pid, &status, syscall.WUNTRACED|syscall.WNOHANG, nil)
	return err == nil && pid == p.Pid && status.Stopped()
}
