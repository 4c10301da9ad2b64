package process

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Server is a program that listens at Addr. It may be killed, paused and started
// again while others use it.
type Server struct {
	Addr    string
	Command []string // the program and its arguments
	Env     []string // besides this process's own
	Dir     string   // has its log, as the file log
	Ready   func() error
	// Attributes, if not nil, are those of the process, such as its user.
	Attributes *syscall.SysProcAttr

	t       TB
	mu      sync.Mutex
	process *Process
}

// Serve starts a server that ends with the test. It does not wait until the server
// is ready.
func Serve(t TB, s *Server) *Server {
	t.Helper()
	s.t = t
	t.Cleanup(s.Kill)
	s.launch()
	return s
}

func (s *Server) launch() {
	s.t.Helper()
	log, err := os.OpenFile(filepath.Join(s.Dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(s.Command[0], s.Command[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.Env, cmd.SysProcAttr = log, log, append(os.Environ(), s.Env...), s.Attributes
	p, err := Start(cmd)
	if err != nil {
		s.t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.process = p
}

// Start starts the server again after Kill, and returns when it is ready.
func (s *Server) Start() {
	s.t.Helper()
	s.launch()
	s.Await()
}

// readyLimit only ends a hang: a second is usual.
const readyLimit = 5 * time.Minute

// Await returns when the server is ready.
func (s *Server) Await() *Server {
	s.t.Helper()
	limit := time.After(readyLimit)
	for {
		err := s.Ready()
		if err == nil {
			return s
		}
		select {
		case <-s.now().Done():
			s.t.Fatalf("%s ended before it was ready: %s", s.Command[0], s.Log())
		case <-limit:
			s.t.Fatalf("%s is not ready after %v: %v; the end of its log: %s", s.Command[0], readyLimit, err, s.Log())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Listens is a Ready for a server that serves as soon as it accepts connections.
func Listens(addr string) func() error {
	return func() error {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			conn.Close()
		}
		return err
	}
}

// Find returns the path of a program, which may be where only root's PATH leads.
func Find(t TB, name string) string {
	t.Helper()
	for _, dir := range append([]string{""}, "/usr/sbin/", "/usr/local/sbin/", "/opt/homebrew/bin/") {
		if path, err := exec.LookPath(dir + name); err == nil {
			return path
		}
	}
	t.Fatalf("%s is not installed; run .ci/setup servers to install it", name)
	return ""
}

// Log returns the end of what the server has written.
func (s *Server) Log() string {
	text, _ := os.ReadFile(filepath.Join(s.Dir, "log")) // it only explains another failure
	return string(text[max(0, len(text)-4000):])
}

func (s *Server) now() *Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process
}

// Kill is as [Process.Kill].
func (s *Server) Kill() {
	if p := s.now(); p != nil {
		p.Kill()
	}
}

// Pause is as [Process.Pause].
func (s *Server) Pause() { s.now().Pause() }

// Resume is as [Process.Resume].
func (s *Server) Resume() { s.now().Resume() }

var (
	ports     atomic.Int64
	firstPort = sync.OnceValue(func() int { return rand.IntN(20000) })
)

// FreeAddr returns a free loopback address. Its port is below those that the
// kernel gives to outgoing connections, one of which could otherwise take the
// port of a server that is down.
//
// A process's ports follow each other from a random one on, so that no two of its servers,
// which begin side by side, are given the same.
func FreeAddr(t TB) string {
	t.Helper()
	var err error
	for range 1000 {
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprint("127.0.0.1:", 12000+(firstPort()+int(ports.Add(1)))%20000)); err == nil {
			l.Close()
			return l.Addr().String()
		}
	}
	t.Fatal(err)
	return ""
}
