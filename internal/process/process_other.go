//go:build !unix

package process

import "syscall"

func attributes(a *syscall.SysProcAttr) *syscall.SysProcAttr { return a }

func (p *Process) killGroup() { p.cmd.Process.Kill() }

// Pause does nothing: there is no SIGSTOP here.
func (p *Process) Pause() bool { return false }

// Resume does nothing.
func (p *Process) Resume() {}
