// Package process starts the programs that tests and examples stop, continue and
// kill: servers, which are started again on their data, and workers, which are
// talked to in lines. On Linux the kernel kills them when this process ends, however
// that happens.
//
// Package pgtest starts PostgreSQL in its own way, because more is left of a server
// than one process: its children, shared memory and a directory.
package process

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
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

// Start starts a command and waits for its end in the background. The process is in
// a group of its own, so that Ctrl-C reaches only the program that ends it. Its
// output goes to files or writers, not to pipes of [exec.Cmd].
func Start(cmd *exec.Cmd) (*Process, error) {
	cmd.SysProcAttr = attributes(cmd.SysProcAttr)
	started := make(chan error)
	starter() <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return nil, err
	}
	p := &Process{cmd, make(chan struct{})}
	go func() {
		cmd.Wait() // ProcessState says how it ended
		close(p.done)
	}()
	return p, nil
}

// Self is this program, to be started again with more in its environment.
func Self(env ...string) *exec.Cmd {
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), env...)
	return cmd
}

// Done is closed when the process has ended and its output was written.
func (p *Process) Done() <-chan struct{} { return p.done }

// PID returns the process ID.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// State says how the process ended. It must have ended.
func (p *Process) State() *os.ProcessState { return p.cmd.ProcessState }

// Kill sends SIGKILL to the process and what it has started, which receive it also
// when they are stopped, and returns when the process is gone.
func (p *Process) Kill() {
	select {
	case <-p.done:
	default:
		p.killGroup() // fails only if it has ended
		<-p.done
	}
}

// Worker is a program that reads lines and writes lines.
type Worker struct {
	*Process
	In  io.WriteCloser
	Out *bufio.Scanner // to the end of what it writes
	t   TB
}

// StartWorker starts a command whose input and output this process has.
func StartWorker(cmd *exec.Cmd) (*Worker, error) {
	out, stdout, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer stdout.Close()
	cmd.Stdout = stdout // a pipe of exec.Cmd would be closed when the process ends
	w := &Worker{Out: bufio.NewScanner(out)}
	if w.In, err = cmd.StdinPipe(); err == nil {
		w.Process, err = Start(cmd)
	}
	if err != nil {
		out.Close()
		return nil, err
	}
	return w, nil
}

// Work starts a worker that ends with the test. Its standard error is this process's,
// unless the command has another one.
func Work(t TB, cmd *exec.Cmd) *Worker {
	t.Helper()
	if cmd.Stderr == nil {
		cmd.Stderr = os.Stderr
	}
	w, err := StartWorker(cmd)
	if err != nil {
		t.Fatalf("%s does not start; .ci/setup servers installs what the tests need: %v", cmd.Path, err)
	}
	w.t = t
	t.Cleanup(w.Kill)
	return w
}

// Line returns the next line. The test fails if the worker ends before it has
// written one.
func (w *Worker) Line() string {
	w.t.Helper()
	if !w.Out.Scan() {
		<-w.Done()
		w.t.Fatalf("%s ended (%v) before it wrote a line: %v", w.cmd.Path, w.State(), w.Out.Err())
	}
	return w.Out.Text()
}

// Say writes a line to the worker.
func (w *Worker) Say(line string) {
	w.t.Helper()
	if _, err := io.WriteString(w.In, line+"\n"); err != nil {
		w.t.Fatal(err)
	}
}

// End closes the worker's input and returns its exit code when it has ended.
func (w *Worker) End() int {
	w.In.Close()
	<-w.done
	return w.State().ExitCode()
}
