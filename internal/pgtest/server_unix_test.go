//go:build unix

package pgtest

import (
	"os"
	"path/filepath"
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
