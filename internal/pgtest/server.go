package pgtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// startLimit bounds Start and Restart if the context sets no deadline. It only
// ends a hang: on a machine with many more processes than processors initdb
// alone takes a minute.
const startLimit = 5 * time.Minute

// errPortTaken says that postgres ended at once because another process listens
// on its port.
var errPortTaken = errors.New("the port is taken")

// Server is a private PostgreSQL server. Its methods may be called from several
// goroutines; those that start and stop take turns.
type Server struct {
	bin        string
	dir        string
	port       int
	password   string
	version    string
	versionNum int

	mu         sync.Mutex // held while the server starts or stops
	supervisor *supervisor
	stopped    bool
	stopErr    error
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
	name := "fencepost-pgtest-" + randomHex(6)
	configuration, err := opts.configuration(name)
	if err != nil {
		return nil, err
	}
	bin, err := findBinaries(ctx, usualDirectories)
	if err != nil {
		if os.Getenv(databaseURLVariable) != "" {
			err = fmt.Errorf("%w (%s gives databases, but not a server of one's own)", err, databaseURLVariable)
		}
		return nil, err
	}
	secret, err := newSecret()
	if err != nil {
		return nil, err
	}
	s := &Server{bin: bin, password: secret.password}
	s.supervisor, err = supervise(name, bin, roots(opts.Durable), secret.verifier, configuration)
	if err != nil {
		return nil, err
	}
	s.dir = s.supervisor.dir
	if err := s.begin(ctx); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

// begin takes a server from an empty directory to answering queries.
func (s *Server) begin(ctx context.Context) error {
	code, err := s.supervisor.reply(ctx, "initdb")
	if err != nil {
		return err
	}
	if code != "0" {
		return fmt.Errorf("pgtest: %s/initdb failed:\n%s", s.bin, s.tail("initdb.log", 0))
	}
	return s.serve(ctx)
}

// serve takes a server from a data directory to answering queries.
func (s *Server) serve(ctx context.Context) (err error) {
	for range 10 {
		if s.port, err = freePort(); err != nil {
			return err
		}
		if err = s.launch(ctx); !errors.Is(err, errPortTaken) {
			break
		}
	}
	if err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, s.URL())
	if err != nil {
		return fmt.Errorf("pgtest: %w\n%s", err, s.tail("server.log", 0))
	}
	err = conn.QueryRow(ctx, `SELECT current_setting('server_version'), current_setting('server_version_num')::int`).
		Scan(&s.version, &s.versionNum)
	if err := errors.Join(err, conn.Close(ctx)); err != nil {
		return fmt.Errorf("pgtest: ask for the version: %w", err)
	}
	return nil
}

// launch runs postgres on s.port and waits until it accepts connections.
func (s *Server) launch(ctx context.Context) error {
	var logged int64
	if info, err := os.Stat(filepath.Join(s.dir, "server.log")); err == nil {
		logged = info.Size()
	}
	process, err := s.supervisor.launch(s.port)
	if err != nil {
		return err
	}
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for {
		if s.ready(process.pid) {
			return nil
		}
		select {
		case <-ticker.C:
		case <-process.exited:
			log := s.tail("server.log", logged)
			if strings.Contains(log, "Address already in use") {
				return fmt.Errorf("pgtest: %w:\n%s", errPortTaken, log)
			}
			return fmt.Errorf("pgtest: postgres ended while starting:\n%s", log)
		case <-ctx.Done():
			return fmt.Errorf("pgtest: postgres is not ready: %w\n%s", context.Cause(ctx), s.tail("server.log", logged))
		}
	}
}

// ready reads the postmaster's pid file: the process in the first line, because
// the file of a killed one stays, and "ready" in the eighth.
func (s *Server) ready(pid int) bool {
	content, err := os.ReadFile(filepath.Join(s.dir, "data", "postmaster.pid"))
	if err != nil {
		return false
	}
	lines := strings.Split(string(content), "\n")
	return len(lines) >= 8 && lines[0] == strconv.Itoa(pid) && strings.TrimSpace(lines[7]) == "ready"
}

// tail returns the end of a log, from an offset on, for an error.
func (s *Server) tail(file string, offset int64) string {
	content, err := os.ReadFile(filepath.Join(s.dir, file))
	if err != nil {
		return "(no log: " + err.Error() + ")"
	}
	if int64(len(content)) >= offset {
		content = content[offset:]
	}
	const enough = 4000
	if len(content) > enough {
		content = content[len(content)-enough:]
	}
	return strings.TrimSpace(string(content))
}

// URL returns the superuser's connection URL for the database postgres. It
// stays the same across Kill and Restart.
func (s *Server) URL() string { return s.databaseURL("postgres") }

func (s *Server) databaseURL(name string) string {
	u := url.URL{
		Scheme: "postgres",
		User:   url.UserPassword("postgres", s.password),
		Host:   net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)),
		Path:   "/" + name,
		// The loopback connection needs no TLS, and trying it costs a round trip.
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// NewDatabase creates an empty database and returns its connection URL. The
// function drop removes it and ends connections that are still open. Calling it
// is optional: Stop removes everything.
func (s *Server) NewDatabase(ctx context.Context) (url string, drop func(), err error) {
	name := scratchName("")
	if err := createDatabase(ctx, s.URL(), name, "template0"); err != nil {
		return "", nil, err
	}
	// A database that cannot be dropped is removed with the server.
	return s.databaseURL(name), func() { _ = dropDatabase(s.URL(), name) }, nil
}

// Dir returns the server's directory. The data directory is data in it, the log
// is server.log, and the Unix socket is there too.
func (s *Server) Dir() string { return s.dir }

// Bin returns the directory of the server's binaries, for pg_basebackup and the
// like.
func (s *Server) Bin() string { return s.bin }

// Port returns the TCP port on 127.0.0.1.
func (s *Server) Port() int { return s.port }

// Version returns the server's version, such as "17.2".
func (s *Server) Version() string { return s.version }

// VersionNum returns the server's version as a number, such as 170002.
func (s *Server) VersionNum() int { return s.versionNum }

// PID returns the process of the postmaster, 0 while the server is down.
func (s *Server) PID() int {
	if p := s.supervisor.postmaster(); p.running() {
		return p.pid
	}
	return 0
}
