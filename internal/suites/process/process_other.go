//go:build unix && !linux

package process

import "syscall"

func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// Pause sends SIGSTOP; false if the process has ended.
func (p *Process) Pause() bool { return p.cmd.Process.Signal(syscall.SIGSTOP) == nil }
