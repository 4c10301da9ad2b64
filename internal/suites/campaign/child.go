package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// environment is this process's own, before a server whose clock can be stepped
// temporarily adds to it.
var environment = os.Environ()

// child is a process that the controller starts, stops, resumes, kills and
// starts again under the same name.
type child struct {
	listen func(*child, report)

	mu      sync.Mutex
	role    role
	cmd     *exec.Cmd
	in      io.WriteCloser
	exited  chan struct{}
	stopped bool
	retired bool // it must end
	started bool
	stderr  *tail
}

func newChild(r role, listen func(*child, report)) *child { return &child{role: r, listen: listen} }

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
	if c.started {
		c.role.Life++
	}
	encoded, err := json.Marshal(c.role)
	if err != nil {
		return err
	}
	cmd := exec.Command(self)
	cmd.Env = append(slices.Clone(environment), roleVariable+"="+string(encoded))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	c.stderr = &tail{}
	cmd.Stderr = c.stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	c.cmd, c.in, c.exited, c.stopped, c.started = cmd, in, make(chan struct{}), false, true
	go c.read(cmd, out, c.exited, c.role.Life)
	return nil
}

// read passes the child's reports on until its output ends, then waits for it.
func (c *child) read(cmd *exec.Cmd, out io.Reader, exited chan struct{}, life int) {
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var r report
		if json.Unmarshal(lines.Bytes(), &r) == nil {
			r.life = life
			c.listen(c, r)
		}
	}
	cmd.Wait() // cmd.ProcessState says how it ended
	close(exited)
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

func (c *child) say(line string) {
	c.mu.Lock()
	in := c.in
	c.mu.Unlock()
	io.WriteString(in, line+"\n") // to a child that is gone: nothing to do
}

// pause stops the process and returns when the kernel says that it is stopped;
// false if it has ended.
func (c *child) pause() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped || c.cmd.Process.Signal(syscall.SIGSTOP) != nil {
		return false
	}
	c.stopped = true
	for range 2000 {
		switch state(c.cmd.Process.Pid) {
		case 'T':
			return true
		case 0, 'Z', 'X':
			return false
		}
		time.Sleep(500 * time.Microsecond)
	}
	c.stopped = false
	c.cmd.Process.Signal(syscall.SIGCONT)
	return false
}

// state asks the kernel for a process's state; 0 if there is none.
func state(pid int) byte {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	if i := strings.LastIndexByte(string(stat), ')'); i >= 0 && i+2 < len(stat) {
		return stat[i+2]
	}
	return 0
}

func (c *child) resume() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		c.stopped = false
		c.cmd.Process.Signal(syscall.SIGCONT)
	}
}

// kill ends the process with SIGKILL, stopped or not, and waits until it is
// gone.
func (c *child) kill() {
	c.mu.Lock()
	cmd, exited := c.cmd, c.exited
	c.mu.Unlock()
	if cmd == nil {
		return
	}
	cmd.Process.Kill()
	<-exited
}

// retire lets the child end on its own, and kills it if it does not.
func (c *child) retire(patience time.Duration) error {
	c.mu.Lock()
	c.retired = true
	exited, cmd := c.exited, c.cmd
	c.mu.Unlock()
	if cmd == nil {
		return nil
	}
	c.resume()
	c.say("stop")
	select {
	case <-exited:
	case <-time.After(patience):
		c.kill()
		return fmt.Errorf("%s did not end within %v", c.role.Name, patience)
	}
	if code := cmd.ProcessState.ExitCode(); code != 0 && code != -1 {
		return fmt.Errorf("%s ended with status %d: %s", c.role.Name, code, c.stderr)
	}
	return nil
}

func (c *child) isRetired() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.retired
}

// died reports a child that ended on its own; none does before it is told to.
func (c *child) died() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.exited:
		if !c.cmd.ProcessState.Sys().(syscall.WaitStatus).Signaled() && !c.retired {
			return errors.New(c.role.Name + " ended by itself: " + c.stderr.String())
		}
	default:
	}
	return nil
}

// tail keeps the end of a child's standard error.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	if len(t.text) > 4000 {
		t.text = t.text[len(t.text)-4000:]
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.text))
}
