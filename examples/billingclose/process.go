package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// process is a worker in an operating-system process of its own: this same
// program, made a worker by its environment.
type process struct {
	name    string
	cmd     *exec.Cmd
	in      io.WriteCloser
	reports chan report
	stderr  bytes.Buffer
	exited  chan struct{}
	err     error // of the process; read after exited is closed
}

func startWorker(r role) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	encoded, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	p := &process{name: r.Name, cmd: exec.Command(self), reports: make(chan report, 16), exited: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), roleVariable+"="+string(encoded))
	p.cmd.SysProcAttr = dieWithParent()
	p.cmd.Stderr = &p.stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go p.read(out)
	return p, nil
}

// read passes the worker's reports on until its output ends, then waits for it.
func (p *process) read(out io.Reader) {
	defer close(p.exited)
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var r report
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			p.err = fmt.Errorf("worker %s wrote %q: %w", p.name, lines.Bytes(), err)
			break
		}
		p.reports <- r
	}
	close(p.reports)
	if err := p.cmd.Wait(); err != nil && p.err == nil {
		p.err = fmt.Errorf("worker %s: %w: %s", p.name, err, bytes.TrimSpace(p.stderr.Bytes()))
	}
}

// next returns the worker's next report.
func (p *process) next(ctx context.Context) (report, error) {
	select {
	case r, ok := <-p.reports:
		if !ok {
			<-p.exited
			return r, errors.Join(errors.New("worker "+p.name+" ended early"), p.err)
		}
		return r, nil
	case <-ctx.Done():
		return report{}, fmt.Errorf("waiting for worker %s: %w", p.name, context.Cause(ctx))
	}
}

// pause stops the process as a hypervisor, a debugger or a swapping machine
// would: without its consent. It returns once the kernel says it is stopped.
func (p *process) pause(ctx context.Context) error {
	if err := suspend(p.cmd.Process); err != nil {
		return err
	}
	for !suspended(p.cmd.Process) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("stopping worker %s: %w", p.name, context.Cause(ctx))
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}

// goOn resumes the process and lets it do its next step.
func (p *process) goOn() error {
	if err := resume(p.cmd.Process); err != nil {
		return err
	}
	_, err := io.WriteString(p.in, "go\n")
	return err
}

// wait waits for the process to end on its own.
func (p *process) wait(ctx context.Context) error {
	select {
	case <-p.exited:
		return p.err
	case <-ctx.Done():
		return fmt.Errorf("waiting for worker %s to end: %w", p.name, context.Cause(ctx))
	}
}

// kill ends the process, stopped or not, and waits until it is gone.
func (p *process) kill() {
	p.cmd.Process.Kill()
	p.in.Close()
	for range p.reports { // so that read can reach its end
	}
	<-p.exited
}
