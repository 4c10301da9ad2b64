//go:build unix

package pgtest

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// The server does not run as root, and runs as this user if that is not root.
func TestServerUser(t *testing.T) {
	server := shared(t)
	info, err := os.Stat(filepath.Join(server.Dir(), "data"))
	if err != nil {
		t.Fatal(err)
	}
	owner := int(info.Sys().(*syscall.Stat_t).Uid)
	if os.Geteuid() == 0 {
		want, err := serverUser("postgres", "nobody")
		if err != nil {
			t.Fatal(err)
		}
		if owner == 0 || owner != int(want.Uid) {
			t.Errorf("the data belongs to user %d, want %d", owner, want.Uid)
		}
	} else if owner != os.Geteuid() {
		t.Errorf("the data belongs to user %d, want %d", owner, os.Geteuid())
	}
	if mode := info.Mode().Perm(); mode != 0o700 {
		t.Errorf("the mode of the data directory is %o, want 700", mode)
	}
}

func TestServerUserFallsBack(t *testing.T) {
	nobody, err := serverUser("nobody")
	if err != nil {
		t.Fatal(err)
	}
	got, err := serverUser("no-such-user-here", "nobody")
	if err != nil {
		t.Fatal(err)
	}
	if got.Uid != nobody.Uid {
		t.Errorf("user %d, want %d", got.Uid, nobody.Uid)
	}
	if _, err := serverUser("no-such-user-here"); err == nil {
		t.Error("no error for a user that does not exist")
	}
}

// Commits that were acknowledged survive Kill, which leaves no process.
func TestKillKeepsCommittedRows(t *testing.T) {
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

// The control: Kill is a crash, which loses what the server keeps in memory.
func TestKillLosesWhatWasNotWritten(t *testing.T) {
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
func TestRestartAfterForeignKill(t *testing.T) {
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

// A killed server that is stopped leaves no System V shared memory. Where the
// system does not list the segments by creator this checks nothing but Stop.
func TestKilledServerLeavesNoSharedMemory(t *testing.T) {
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

// A TMPDIR that is closed to the server's user is passed over.
func TestClosedTemporaryDirectory(t *testing.T) {
	closed := closedDirectory(t)
	t.Setenv("TMPDIR", closed)
	if server := start(t, nil); strings.HasPrefix(server.Dir(), closed) {
		t.Errorf("the server is in %s", server.Dir())
	}
	if entries, err := os.ReadDir(closed); err != nil || len(entries) > 0 {
		t.Errorf("in %s there are %v, %v", closed, entries, err)
	}
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

// The supervisor takes the first usable root, and leaves nothing in the others.
func TestUnusableDirectories(t *testing.T) {
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

func TestRoots(t *testing.T) {
	tests := []struct {
		tmpdir  string
		durable bool
		want    string
	}{
		{"", false, "/dev/shm /tmp /var/tmp"},
		{"", true, "/tmp /var/tmp"},
		{"/var/tmp", false, "/var/tmp /tmp /dev/shm"},
		{"/home/me", true, "/home/me /tmp /var/tmp"},
	}
	for _, test := range tests {
		t.Setenv("TMPDIR", test.tmpdir)
		if got := strings.Join(roots(test.durable), " "); got != test.want {
			t.Errorf("roots for TMPDIR %q, durable %v: %s, want %s", test.tmpdir, test.durable, got, test.want)
		}
	}
}

// The Unix socket is reachable for the server's user and for root.
func TestUnixSocket(t *testing.T) {
	t.Parallel()
	server := shared(t)
	config, err := pgx.ParseConfig(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	config.Host = server.Dir()
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
