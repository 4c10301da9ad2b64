// Package servers starts the engines that the issuers are tested on, as
// separate processes on loopback: redis-server and redis-sentinel, etcd, and
// ZooKeeper. A node can be killed, stopped, continued and started again.
package servers

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Process is one node.
type Process struct {
	// Addr is where its clients connect.
	Addr string

	t       TB
	command []string
	env     []string
	log     string // a file
	ready   func() error

	mu   sync.Mutex
	cmd  *exec.Cmd
	done chan struct{}
}

// starter starts every process from one thread that never ends: the kernel kills
// them (Pdeathsig) when the thread that started them ends.
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

// StartCommand starts a process that the kernel kills with this one.
func StartCommand(cmd *exec.Cmd) error {
	cmd.SysProcAttr = dieWithParent()
	started := make(chan error)
	starter() <- func() { started <- cmd.Start() }
	return <-started
}

// Start starts the node and returns when it can be used.
func (p *Process) Start() {
	p.t.Helper()
	p.launch()
	p.Await()
}

// launch starts the process and does not wait until it is ready.
func (p *Process) launch() {
	p.t.Helper()
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		p.t.Fatal(err)
	}
	defer out.Close()
	cmd := exec.Command(p.command[0], p.command[1:]...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Env = append(os.Environ(), p.env...)
	if err := StartCommand(cmd); err != nil {
		p.t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { cmd.Wait(); close(done) }()
	p.mu.Lock()
	p.cmd, p.done = cmd, done
	p.mu.Unlock()
}

// Await returns when the node can be used.
func (p *Process) Await() {
	p.t.Helper()
	p.mu.Lock()
	done := p.done
	p.mu.Unlock()
	var err error
	for began := time.Now(); time.Since(began) < 5*time.Minute; time.Sleep(5 * time.Millisecond) {
		if err = p.ready(); err == nil {
			return
		}
		select {
		case <-done:
			text, _ := os.ReadFile(p.log)
			p.t.Fatalf("%s ended before it was ready: %.2000s", p.command[0], text)
		default:
		}
	}
	text, _ := os.ReadFile(p.log)
	p.t.Fatalf("%s is not ready after five minutes: %v; the end of its log: %s", p.command[0], err, text[max(0, len(text)-2000):])
}

// Log returns the end of the node's log.
func (p *Process) Log() string {
	text, _ := os.ReadFile(p.log)
	return string(text[max(0, len(text)-4000):])
}

// Kill kills the node as the kernel does, and returns when it is gone.
func (p *Process) Kill() {
	p.mu.Lock()
	cmd, done := p.cmd, p.done
	p.mu.Unlock()
	if cmd != nil {
		cmd.Process.Kill()
		<-done
	}
}

// Pause stops the node with SIGSTOP, Resume continues it.
func (p *Process) Pause()  { p.signal(syscall.SIGSTOP) }
func (p *Process) Resume() { p.signal(syscall.SIGCONT) }

func (p *Process) signal(s syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cmd.Process.Signal(s)
}

// program finds a server's binary, or says how to install it.
func program(t TB, name string) string {
	t.Helper()
	for _, dir := range append(strings.Split(os.Getenv("PATH"), ":"), "/usr/sbin", "/usr/local/sbin") {
		if path, err := exec.LookPath(dir + "/" + name); err == nil {
			return path
		}
	}
	t.Fatalf("%s is not installed; run .ci/setup servers to install it", name)
	return ""
}

// FreeAddr returns a free loopback address. Its port is below those that the
// kernel gives to outgoing connections, one of which could otherwise take the
// port of a node that is down.
func FreeAddr(t TB) string {
	t.Helper()
	var err error
	for range 1000 {
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprint("127.0.0.1:", 12000+rand.IntN(20000))); err == nil {
			l.Close()
			return l.Addr().String()
		}
	}
	t.Fatal(err)
	return ""
}

func port(addr string) string { return addr[strings.LastIndexByte(addr, ':')+1:] }

// ask sends a line and returns the server's answer.
func ask(addr, line string) (string, error) {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(2 * time.Second))
	if _, err := fmt.Fprint(conn, line); err != nil {
		return "", err
	}
	buf := make([]byte, 4096)
	n, err := conn.Read(buf)
	if n > 0 {
		err = nil
	}
	return string(buf[:n]), err
}
