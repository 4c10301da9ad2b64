//go:build unix

package pgtest

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

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
