//go:build unix && !linux

package process

import "syscall"

func attributes(a *syscall.SysProcAttr) *syscall.SysProcAttr { return group(a) }

// Pause sends SIGSTOP; false if the process has ended.
func (p *Process) Pause() bool { return p.cmd.Process.Signal(syscall.SIGSTOP) == nil }
