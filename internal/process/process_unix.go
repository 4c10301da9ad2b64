//go:build unix

package process

import "syscall"

func (p *Process) killGroup() { syscall.Kill(-p.PID(), syscall.SIGKILL) }

// Resume continues a process after Pause.
func (p *Process) Resume() { p.cmd.Process.Signal(syscall.SIGCONT) }

// group puts the process into a group of its own.
func group(a *syscall.SysProcAttr) *syscall.SysProcAttr {
	if a == nil {
		a = &syscall.SysProcAttr{}
	}
	a.Setpgid = true
	return a
}
