package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fencepost-go/fencepost/internal/process"
)

// environment is this process's own, before a server whose clock can be stepped
// temporarily adds to it.
var environment = os.Environ()

// child is a process that the controller starts, stops, resumes, kills and
// starts again under the same name.
type child struct {
	listen func(*child, report)
	ready  chan string // the address of a server that listens
	link   *link       // to a server

	mu      sync.Mutex
	role    role
	process *process.Process // nil before the first start
	in      io.Writer
	output  *output
	stopped bool
	retired bool // it must end
}

func newChild(r role, listen func(*child, report)) *child {
	return &child{role: r, listen: listen, ready: make(chan string, 1)}
}

// start runs the program as a child. The kernel kills it when this process
// dies, because a stopped child could not notice by itself.
func (c *child) start() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.retired {
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if c.process != nil {
		c.role.Life++
	}
	encoded, err := json.Marshal(c.role)
	if err != nil {
		return err
	}
	cmd := exec.Command(self)
	cmd.Env = append(slices.Clone(environment), roleVariable+"="+string(encoded))
	c.output, c.stopped = &output{child: c, life: c.role.Life}, false
	cmd.Stdout, cmd.Stderr = c.output, &c.output.errors
	if c.in, err = cmd.StdinPipe(); err != nil {
		return err
	}
	c.process, err = process.Start(cmd)
	return err
}

// startServer starts a child that listens, and returns its address.
func (c *child) startServer() (string, error) {
	if err := c.start(); err != nil {
		return "", err
	}
	select {
	case address := <-c.ready:
		return address, nil
	case <-c.process.Done():
	case <-time.After(hangLimit):
	}
	return "", fmt.Errorf("%s is not ready: %s", c.role.Name, c.output.errors.String())
}

// output passes on the reports of one life, and keeps what went to standard error
// in memory: children write there only when they fail.
type output struct {
	child  *child
	life   int
	rest   []byte
	errors bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.rest = append(o.rest, p...)
	for {
		line, rest, whole := bytes.Cut(o.rest, []byte("\n"))
		if !whole {
			return len(p), nil
		}
		o.rest = rest
		r := report{life: o.life}
		if json.Unmarshal(line, &r) != nil {
			continue
		}
		if r.Phase == phaseReady {
			o.child.ready <- r.Address
		} else {
			o.child.listen(o.child, r)
		}
	}
}

// setPace tells the child, and those that follow it.
func (c *child) setPace(p int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.role.Pace = p
	fmt.Fprintf(c.in, "pace %d\n", p) // to a child that is gone: nothing to do
}

// goOn lets the child pass the gate that it reached in that life. In a later
// life, after a kill and restart, the word would let it pass a later gate.
func (c *child) goOn(life int) {
	c.mu.Lock()
	in, same := c.in, c.role.Life == life
	c.mu.Unlock()
	if same {
		io.WriteString(in, "go\n") // to a child that is gone: nothing to do
	}
}

// pause stops the process and returns when the kernel says that it is stopped;
// false if it has ended.
func (c *child) pause() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped || !c.process.Pause() {
		return false
	}
	c.stopped = true
	return true
}

func (c *child) resume() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		c.stopped = false
		c.process.Resume()
	}
}

// kill ends the process with SIGKILL, stopped or not, and waits until it is
// gone.
func (c *child) kill() {
	c.mu.Lock()
	p := c.process
	c.mu.Unlock()
	if p != nil {
		p.Kill()
	}
}

// retire lets the child end on its own, and kills it if it does not. A child that
// has ended before, without having been killed, is an error.
func (c *child) retire() error {
	c.mu.Lock()
	c.retired = true
	in, p := c.in, c.process
	c.mu.Unlock()
	c.resume()
	io.WriteString(in, "stop\n") // to a child that is gone: nothing to do
	select {
	case <-p.Done():
	case <-time.After(hangLimit):
		c.kill()
		return errors.New(c.role.Name + " did not end")
	}
	if code := p.State().ExitCode(); code > 0 { // -1: a signal
		return fmt.Errorf("%s ended with status %d: %s", c.role.Name, code, strings.TrimSpace(c.output.errors.String()))
	}
	return nil
}
