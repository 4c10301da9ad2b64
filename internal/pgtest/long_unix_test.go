//go:build long && unix

package pgtest

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// The control: Kill is a crash, which loses what the server keeps in memory.
func TestLongKillLosesWhatWasNotWritten(t *testing.T) {
	t.Parallel()
	server := start(t, &Options{Settings: map[string]string{
		"synchronous_commit": "off",
		"wal_writer_delay":   "10s",
	}})
	execAll(t, server.URL(), "CREATE TABLE lost (n int)", "CHECKPOINT")
	// Only a session may write from here on: whether the server's own writers
	// run before the kill would be chance.
	var pids []int
	for end := time.Now().Add(patience); len(pids) != 3; { // they start alongside the first sessions
		if time.Now().After(end) {
			t.Fatalf("processes %v", pids)
		}
		pids = query[[]int](t, server.URL(), `SELECT coalesce(array_agg(pid), '{}') FROM pg_stat_activity
			WHERE backend_type IN ('walwriter', 'background writer', 'checkpointer')`)
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	execAll(t, server.URL(), "INSERT INTO lost VALUES (1)")
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := queryInt(t, server.URL(), "SELECT count(*)::int FROM lost"); n != 0 {
		t.Errorf("%d rows survived a crash before they were written", n)
	}
}

// A postmaster that is killed from outside can be restarted although its
// children linger.
func TestLongRestartAfterForeignKill(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	execAll(t, server.URL(), "CREATE TABLE kept (n int)", "INSERT INTO kept VALUES (1)")
	busy := connect(t, server.URL())
	go busy.Exec(t.Context(), "SELECT count(*) FROM generate_series(1, 1000000000000)")
	if err := syscall.Kill(server.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := queryInt(t, server.URL(), "SELECT count(*)::int FROM kept"); n != 1 {
		t.Errorf("%d rows, want 1", n)
	}
}

func createdSharedMemory(t *testing.T, pid int) bool {
	t.Helper()
	content, err := os.ReadFile("/proc/sysvipc/shm")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(content)) {
		if fields := strings.Fields(line); len(fields) > 4 && fields[4] == strconv.Itoa(pid) {
			return true
		}
	}
	return false
}

// A killed server that is stopped leaves no System V shared memory. Where the
// system does not list the segments by creator this checks nothing but Stop.
func TestLongKilledServerLeavesNoSharedMemory(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	pid := server.PID()
	_, err := os.Stat("/proc/sysvipc/shm")
	listed := err == nil
	if listed && !createdSharedMemory(t, pid) {
		t.Error("the check does not notice the segment of a running server")
	}
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	if listed && createdSharedMemory(t, pid) {
		t.Error("a shared memory segment is left behind")
	}
}

// The supervisor takes the first usable root, and leaves nothing in the others.
func TestLongUnusableDirectories(t *testing.T) {
	root := newRoot(t)
	make := func(elem ...string) string {
		dir := filepath.Join(append([]string{root}, elem...)...)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	long := make(strings.Repeat("long", 30))
	target := make(strings.Repeat("target", 20))
	link := filepath.Join(root, "link")
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	quoted := make("it's")
	closed := closedDirectory(t)
	good := make("good")
	bin, err := findBinaries(t.Context(), usualDirectories)
	if err != nil {
		t.Fatal(err)
	}
	unusable := []string{filepath.Join(root, "missing"), closed, long, link, quoted}
	s, err := supervise("fencepost-pgtest-roots", bin, append(unusable, good), "verifier", nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(good, "fencepost-pgtest-roots"); s.dir != want {
		t.Errorf("the server is in %s, want %s", s.dir, want)
	}
	if err := s.close(); err != nil {
		t.Error(err)
	}
	for _, dir := range []string{closed, long, target, quoted, good} {
		if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
			t.Errorf("in %s there are %v, %v", dir, entries, err)
		}
	}
	if _, err := supervise("fencepost-pgtest-roots", bin, unusable, "verifier", nil); err == nil ||
		!strings.Contains(err.Error(), "no usable directory") {
		t.Errorf("error %v where no root will do", err)
	}
}

// A TMPDIR that is closed to the server's user is passed over.
func TestLongClosedTemporaryDirectory(t *testing.T) {
	closed := closedDirectory(t)
	t.Setenv("TMPDIR", closed)
	if server := start(t, nil); strings.HasPrefix(server.Dir(), closed) {
		t.Errorf("the server is in %s", server.Dir())
	}
	if entries, err := os.ReadDir(closed); err != nil || len(entries) > 0 {
		t.Errorf("in %s there are %v, %v", closed, entries, err)
	}
}

func TestLongManyServers(t *testing.T) {
	t.Parallel()
	var group sync.WaitGroup
	servers := make([]*Server, 3)
	for i := range servers {
		group.Go(func() {
			server, err := Start(t.Context(), nil)
			if err != nil {
				t.Error(err)
				return
			}
			servers[i] = server
		})
	}
	group.Wait()
	ports := map[int]bool{}
	for _, server := range servers {
		if server == nil {
			continue
		}
		ports[server.Port()] = true
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	}
	if len(ports) != len(servers) {
		t.Errorf("%d ports for %d servers", len(ports), len(servers))
	}
}

// Restart waits for its port, because the URL is already in use.
func TestLongRestartWaitsForPort(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	if err := server.StopFast(); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(server.Port())))
	if err != nil {
		t.Fatal(err)
	}
	if err := server.launch(t.Context()); !errors.Is(err, errPortTaken) {
		t.Errorf("error %v, want that the port is taken", err)
	}
	time.AfterFunc(200*time.Millisecond, func() { listener.Close() })
	if err := server.Restart(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestLongStop(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	conn := connect(t, server.URL())
	go conn.Exec(t.Context(), "SELECT pg_sleep(600)")
	for range 3 {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(server.Dir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory after Stop: %v", err)
	}
	if pid := server.PID(); pid != 0 {
		t.Errorf("PID is %d after Stop", pid)
	}
	for name, call := range map[string]func() error{
		"Kill":          server.Kill,
		"StopImmediate": server.StopImmediate,
		"StopFast":      server.StopFast,
		"Restart":       func() error { return server.Restart(t.Context()) },
	} {
		if err := call(); !errors.Is(err, ErrStopped) {
			t.Errorf("%s after Stop: %v", name, err)
		}
	}
}

// Every way to go down and come back keeps the URL and the rows.
func TestLongRestart(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	url := server.URL()
	execAll(t, url, "CREATE TABLE kept (n int)")
	ways := []struct {
		name string
		down func() error
	}{
		{"running", func() error { return nil }},
		{"StopFast", server.StopFast},
		{"StopImmediate", server.StopImmediate},
		{"Kill", server.Kill},
		{"Kill twice", func() error { return errors.Join(server.Kill(), server.Kill()) }},
		{"StopImmediate after Kill", func() error { return errors.Join(server.Kill(), server.StopImmediate()) }},
	}
	for i, way := range ways {
		execAll(t, url, "INSERT INTO kept VALUES (1)")
		if err := way.down(); err != nil {
			t.Fatalf("%s: %v", way.name, err)
		}
		if conn, err := pgx.Connect(t.Context(), url); way.name != "running" && err == nil {
			conn.Close(t.Context())
			t.Errorf("%s: the server still answers", way.name)
		}
		if err := server.Restart(t.Context()); err != nil {
			t.Fatalf("%s: %v", way.name, err)
		}
		if server.URL() != url {
			t.Errorf("%s: the URL has changed", way.name)
		}
		if n := queryInt(t, url, "SELECT count(*)::int FROM kept"); n != i+1 {
			t.Errorf("%s: %d rows, want %d", way.name, n, i+1)
		}
	}
}

func TestLongStartContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	server, err := Start(ctx, nil)
	if err == nil {
		server.Stop()
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want that of the context", err)
	}
}

func TestLongDurable(t *testing.T) {
	t.Parallel()
	server := start(t, &Options{Durable: true})
	if got := query[string](t, server.URL(), "SHOW fsync"); got != "on" {
		t.Errorf("fsync is %s", got)
	}
	if strings.HasPrefix(server.Dir(), "/dev/shm") {
		t.Errorf("the server is in %s", server.Dir())
	}
}

// An error has the message from postgres, and nothing is left behind.
func TestLongStartReportsTheLog(t *testing.T) {
	t.Parallel()
	_, err := Start(t.Context(), &Options{Settings: map[string]string{"work_mem": "plenty"}})
	if err == nil || !strings.Contains(err.Error(), `invalid value for parameter "work_mem"`) {
		t.Errorf("error %v does not quote the log", err)
	}
}

func TestLongSettings(t *testing.T) {
	t.Parallel()
	server := start(t, &Options{Settings: map[string]string{
		"fencepost.quoted":              `it's a \ here`,
		"default_transaction_isolation": "repeatable read",
		"Max_Connections":               "17",
	}})
	for setting, want := range map[string]string{
		"fencepost.quoted":              `it's a \ here`,
		"default_transaction_isolation": "repeatable read",
		"max_connections":               "17",
		"fsync":                         "off",
		"synchronous_commit":            "on",
		"listen_addresses":              "127.0.0.1",
	} {
		if got := query[string](t, server.URL(), "SELECT current_setting($1)", setting); got != want {
			t.Errorf("%s is %q, want %q", setting, got, want)
		}
	}
	for _, settings := range []map[string]string{
		{"port": "1"},
		{"Cluster_Name": "mine"},
		{"a b": "1"},
		{"": "1"},
		{"work_mem": "1\nport = 1"},
	} {
		server, err := Start(t.Context(), &Options{Settings: settings})
		if err == nil {
			server.Stop()
			t.Errorf("Start accepts the settings %q", settings)
		}
	}
}

// Commits that were acknowledged survive Kill, which leaves no process.
func TestLongKillKeepsCommittedRows(t *testing.T) {
	for _, durable := range []bool{false, true} {
		t.Run("durable="+strconv.FormatBool(durable), func(t *testing.T) {
			t.Parallel()
			server := start(t, &Options{Durable: durable})
			execAll(t, server.URL(), "CREATE TABLE acknowledged (n int)")
			busy := connect(t, server.URL())
			sleeping := connect(t, server.URL())
			go busy.Exec(t.Context(), "SELECT count(*) FROM generate_series(1, 1000000000000)")
			go sleeping.Exec(t.Context(), "SELECT pg_sleep(600)")

			const enough = 200
			acknowledged := make(chan int)
			reached := make(chan struct{})
			conn := connect(t, server.URL())
			go func() {
				n := 0
				for {
					if _, err := conn.Exec(t.Context(), "INSERT INTO acknowledged VALUES ($1)", n+1); err != nil {
						acknowledged <- n
						return
					}
					if n++; n == enough {
						close(reached)
					}
				}
			}()
			<-reached
			if err := server.Kill(); err != nil {
				t.Fatal(err)
			}
			if pid := server.PID(); pid != 0 {
				t.Errorf("the postmaster is said to be %d", pid)
			}
			processes, err := processesOf(filepath.Join(server.Dir(), "data"))
			if err != nil {
				t.Fatal(err)
			}
			if len(processes) > 0 {
				t.Errorf("after Kill there are\n%s", strings.Join(processes, "\n"))
			}
			want := <-acknowledged
			if err := server.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
			// The insert without an answer may count.
			got := queryInt(t, server.URL(), "SELECT count(*)::int FROM acknowledged")
			if got != want && got != want+1 {
				t.Errorf("%d rows after the crash, %d were acknowledged", got, want)
			}
		})
	}
}

func TestLongProvidePrivateServer(t *testing.T) {
	t.Setenv(databaseURLVariable, "")
	connString, cleanup, err := Provide(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if n := queryInt(t, connString, "SELECT count(*)::int FROM pg_tables WHERE schemaname = 'public'"); n != 0 {
		t.Errorf("%d tables", n)
	}
	cleanup()
	if conn, err := pgx.Connect(t.Context(), connString); err == nil {
		conn.Close(t.Context())
		t.Error("the server is still there")
	}
}

func start(t *testing.T, opts *Options) *Server {
	t.Helper()
	server, err := Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	return server
}

// closedDirectory makes a directory in which the server's user can write
// nothing: that user cannot write to root's directory, and without root the
// test runs as that user.
func closedDirectory(t *testing.T) string {
	t.Helper()
	mode := os.FileMode(0o500)
	if os.Geteuid() == 0 {
		mode = 0o700
	}
	closed := filepath.Join(newRoot(t), "closed")
	if err := os.Mkdir(closed, mode); err != nil {
		t.Fatal(err)
	}
	return closed
}
