package pgtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// startLimit bounds Start and Restart if the context sets no deadline. It only
// ends a hang: on a machine with many more processes than processors initdb
// takes a minute.
const startLimit = 5 * time.Minute

// errPortTaken says that postgres ended at once because another process listens
// on its port.
var errPortTaken = errors.New("the port is taken")

// Server is a private PostgreSQL server. Its methods may be called from several
// goroutines; those that start and stop take turns.
type Server struct {
	name     string
	bin      string
	dog      *watchdog
	port     int
	password string

	postmaster atomic.Pointer[postmaster] // the latest; nil before the first
	mu         sync.Mutex                 // held while the server starts or stops
	stopped    bool
	stopErr    error
}

// postmaster is one run of postgres.
type postmaster struct {
	pid    int
	exited chan struct{}
}

// Start starts a private server in a temporary directory; nil options are the
// defaults. The context bounds the start, not the life of the server, which
// ends with Stop or with this process. Start always uses server binaries, even
// if FENCEPOST_DATABASE_URL is set; errors.Is(err, ErrNoServer) reports that
// there are none.
func Start(ctx context.Context, opts *Options) (*Server, error) {
	if opts == nil {
		opts = &Options{}
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	bin, err := findBinaries(usualDirectories)
	if err != nil {
		return nil, err
	}
	return begin(ctx, bin, opts, func(s *Server) error { return s.populate(ctx, opts.Fresh) })
}

// begin makes a server's directory, lets fill make the data directory in it, and
// starts a server that accepts queries on it.
func begin(ctx context.Context, bin string, opts *Options, fill func(*Server) error) (*Server, error) {
	s := &Server{name: "fencepost-pgtest-" + randomHex(6), bin: bin}
	var err error
	if s.dog, err = watch(s.name, opts.roots()); err != nil {
		return nil, err
	}
	if err = fill(s); err == nil {
		if err = s.configure(opts); err == nil {
			err = s.serve(ctx)
		}
	}
	if err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

// configure appends to postgresql.conf, where the last line for a setting counts.
func (s *Server) configure(opts *Options) error {
	file, err := os.OpenFile(filepath.Join(s.data(), "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	_, err = file.WriteString(opts.configuration(s.name, s.dog.dir))
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	return nil
}

// serve starts a server on a data directory and waits until it accepts queries. Its port is
// below the ephemeral range (32768 and up on Linux, 49152 elsewhere): one from
// that range could be lost to any other listener of the test while the server is
// down between Kill and Restart, when its URL must not change.
func (s *Server) serve(ctx context.Context) (err error) {
	for range 10 {
		s.port = 20000 + rand.IntN(12768)
		if err = s.launch(ctx); !errors.Is(err, errPortTaken) {
			return err
		}
	}
	return err
}

// launch runs postgres on s.port and waits until it accepts connections.
func (s *Server) launch(ctx context.Context) error {
	log, err := os.OpenFile(filepath.Join(s.dog.dir, "server.log"), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	defer log.Close()
	info, err := log.Stat()
	if err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	// The context ends the wait only: the server outlives it.
	cmd, err := program(context.WithoutCancel(ctx), s.dog.dir, s.bin+"/postgres", "-D", s.data(), "-p", strconv.Itoa(s.port))
	if err != nil {
		return err
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	p := &postmaster{pid: cmd.Process.Pid, exited: make(chan struct{})}
	s.postmaster.Store(p)
	go func() {
		_ = cmd.Wait() // the log says why it ended
		close(p.exited)
	}()
	for ticker := time.Tick(5 * time.Millisecond); !s.ready(p); {
		select {
		case <-ticker:
		case <-p.exited:
			said := tail(log, info.Size())
			if strings.Contains(said, "Address already in use") {
				return fmt.Errorf("pgtest: %w:\n%s", errPortTaken, said)
			}
			return fmt.Errorf("pgtest: postgres ended while starting:\n%s", said)
		case <-ctx.Done():
			return fmt.Errorf("pgtest: postgres is not ready: %w\n%s", context.Cause(ctx), tail(log, info.Size()))
		}
	}
	return nil
}

// ready reads the postmaster's pid file: the process in the first line, because
// the file of a killed one stays, and "ready" in the eighth.
func (s *Server) ready(p *postmaster) bool {
	content, err := os.ReadFile(filepath.Join(s.data(), "postmaster.pid"))
	if err != nil {
		return false
	}
	lines := strings.Split(string(content), "\n")
	return len(lines) >= 8 && lines[0] == strconv.Itoa(p.pid) && strings.TrimSpace(lines[7]) == "ready"
}

// tail returns what a log says from an offset on, for an error.
func tail(log *os.File, offset int64) string {
	content := make([]byte, 4000)
	n, _ := log.ReadAt(content, offset) // it is at its end
	return strings.TrimSpace(string(content[:n]))
}

// URL returns the superuser's connection URL for the database postgres. It
// stays the same across Kill and Restart.
func (s *Server) URL() string {
	// The loopback connection needs no TLS, and trying it costs a round trip.
	return fmt.Sprintf("postgres://postgres:%s@127.0.0.1:%d/postgres?sslmode=disable", url.PathEscape(s.password), s.port)
}

// NewDatabase creates an empty database and returns its connection URL. The
// function drop removes it and ends connections that are still open. Calling it
// is optional: Stop removes everything.
func (s *Server) NewDatabase(ctx context.Context) (url string, drop func(), err error) {
	return newScratch(ctx, s.URL(), "", "template0")
}

// Dir returns the server's directory. The data directory is data in it, the log
// is server.log, and the Unix socket is there too.
func (s *Server) Dir() string { return s.dog.dir }

// Bin returns the directory of the server's binaries, for pg_dump and the like.
func (s *Server) Bin() string { return s.bin }

// Port returns the TCP port on 127.0.0.1.
func (s *Server) Port() int { return s.port }

// PID returns the process of the postmaster, 0 while the server is down.
func (s *Server) PID() int {
	p := s.postmaster.Load()
	if p == nil {
		return 0
	}
	select {
	case <-p.exited:
		return 0
	default:
		return p.pid
	}
}
