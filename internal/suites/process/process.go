// Package process starts the programs that the suites and the examples stop,
// continue and kill: servers, which are started again on their data, and workers.
// On Linux the kernel kills them when this process ends, however that happens.
package process

import (
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

// Process is a program that was started.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{}
}

// starter starts every process from one thread that never ends: the kernel kills
// them when the thread that started them ends.
var starter = sync.OnceValue(func() chan func() {
	c := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range c {
			f()
		}
	}()
	return c
})

// StartCommand is cmd.Start for a process that ends with this one. It is in a
// process group of its own, so that Ctrl-C reaches only the program that ends it.
func StartCommand(cmd *exec.Cmd) error {
	cmd.SysProcAttr = attributes()
	started := make(chan error)
	starter() <- func() { started <- cmd.Start() }
	return <-started
}

// Start starts a command and waits for its end in the background. Its output goes
// to files or writers, not to pipes of [exec.Cmd].
func Start(cmd *exec.Cmd) (*Process, error) {
	if err := StartCommand(cmd); err != nil {
		return nil, err
	}
	p := &Process{cmd, make(chan struct{})}
	go func() {
		cmd.Wait() // ProcessState says how it ended
		close(p.done)
	}()
	return p, nil
}

// Done is closed when the process has ended and its output was written.
func (p *Process) Done() <-chan struct{} { return p.done }

// State says how the process ended. It must have ended.
func (p *Process) State() syscall.WaitStatus {
	return p.cmd.ProcessState.Sys().(syscall.WaitStatus)
}

// Kill sends SIGKILL, which a stopped process receives too, and returns when the
// process is gone.
func (p *Process) Kill() {
	p.cmd.Process.Kill() // fails only if it has ended
	<-p.done
}

// Resume continues a process after Pause.
func (p *Process) Resume() { p.cmd.Process.Signal(syscall.SIGCONT) }
