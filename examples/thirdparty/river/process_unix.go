//go:build unix

package main

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"time"
)

// suspend stops a child as a hypervisor or a swapping machine would, and returns
// once the kernel says that it is stopped.
func suspend(ctx context.Context, p *os.Process) error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(p.Pid, &status, syscall.WUNTRACED|syscall.WNOHANG, nil)
		switch {
		case err != nil && err != syscall.EINTR:
			return fmt.Errorf("wait for process %d: %w", p.Pid, err)
		case pid == p.Pid && status.Stopped():
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(time.Millisecond):
		}
	}
}

func resume(p *os.Process) error { return p.Signal(syscall.SIGCONT) }
