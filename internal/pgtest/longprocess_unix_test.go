//go:build long && unix

package pgtest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// The package works for an unprivileged user, whoever runs this test.
func TestLongUnprivileged(t *testing.T) {
	t.Parallel()
	p := &parent{root: newRoot(t)}
	binary := filepath.Join(p.root, "child")
	content, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(binary, content, 0o755); err != nil {
		t.Fatal(err)
	}
	p.cmd = exec.Command(binary)
	p.cmd.Dir = "/"
	p.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), childVariable + "=return", "TMPDIR=" + p.root}
	p.cmd.Stderr = &p.stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{}
	if os.Geteuid() == 0 {
		credential, err := serverUser("nobody")
		if err != nil {
			t.Fatal(err)
		}
		p.cmd.SysProcAttr.Credential = credential
	}
	p.start(t, "return")
	p.wait(t)
	if err := os.Remove(binary); err != nil {
		t.Fatal(err)
	}
	p.waitUntilClean(t)
}

// A supervisor that is told to end also ends its server.
func TestLongSupervisorTerminated(t *testing.T) {
	t.Parallel()
	p := run(t, "wait")
	if err := syscall.Kill(p.Supervisor, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.waitUntilClean(t)
}

// A process killed while initdb runs, or before it does, leaves nothing either.
func TestLongNothingIsLeftBehindByAnUnfinishedStart(t *testing.T) {
	for _, delay := range []time.Duration{0, 30 * time.Millisecond, 150 * time.Millisecond} {
		t.Run(delay.String(), func(t *testing.T) {
			t.Parallel()
			p := run(t, "init")
			for begin := time.Now(); ; {
				entries, err := os.ReadDir(p.root)
				if err != nil {
					t.Fatal(err)
				}
				if len(entries) > 0 {
					break
				}
				if time.Since(begin) > patience {
					t.Fatal("no directory is made")
				}
				time.Sleep(time.Millisecond)
			}
			time.Sleep(delay)
			if found, err := leftovers(p.root); err != nil || len(found) < 2 {
				t.Fatalf("before the kill there is not a process and a directory: %q, %v", found, err)
			}
			if err := p.cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			p.wait(t)
			p.waitUntilClean(t)
		})
	}
}

// Processes that a test has stopped with SIGSTOP, to play a holder that pauses,
// do not keep a server from going down.
func TestLongStoppedProcesses(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	conn := connect(t, server.URL())
	stop := func(pid int) {
		t.Helper()
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	backend := int(conn.PgConn().PID())
	stop(backend)
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	if alive(backend) {
		t.Error("a stopped session survives Kill")
	}
	for _, shut := range []func() error{server.StopImmediate, server.StopFast} {
		if err := server.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		postmaster := server.PID()
		stop(postmaster)
		if err := shut(); err != nil || alive(postmaster) {
			t.Errorf("error %v, the postmaster lives: %v", err, alive(postmaster))
		}
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	postmaster, backend := server.PID(), int(connect(t, server.URL()).PgConn().PID())
	stop(backend)
	stop(postmaster)
	if err := server.Stop(); err != nil || alive(postmaster) || alive(backend) {
		t.Errorf("Stop: error %v, the postmaster lives: %v, the session lives: %v",
			err, alive(postmaster), alive(backend))
	}
}

// TestLongStandby: a standby follows its primary, can be promoted, and leaves
// nothing behind.
func TestLongStandby(t *testing.T) {
	primary, err := Start(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer primary.Stop()
	if err := once(t, primary.URL(), "CREATE TABLE early (id int)"); err != nil {
		t.Fatal(err)
	}
	standby, err := primary.Standby(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer standby.Stop()
	if err := once(t, primary.URL(), "CREATE TABLE late (id int)"); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), standby.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var tables int
	var follows bool
	for end := time.Now().Add(patience); tables < 2 && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		err := conn.QueryRow(t.Context(), "SELECT count(*), pg_is_in_recovery() FROM pg_class WHERE relname IN ('early', 'late')").Scan(&tables, &follows)
		if err != nil {
			t.Fatal(err)
		}
	}
	if tables != 2 || !follows {
		t.Errorf("%d tables, in recovery: %t", tables, follows)
	}
	if err := once(t, standby.URL(), "SELECT pg_promote(true, 60)"); err != nil {
		t.Fatal(err)
	}
	if err := once(t, standby.URL(), "DROP TABLE early"); err != nil {
		t.Error(err)
	}
	if standby.VersionNum() != primary.VersionNum() || standby.Port() == primary.Port() {
		t.Errorf("the standby is %s on port %d", standby.Version(), standby.Port())
	}
	if err := standby.Stop(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(standby.Dir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its directory: %v", err)
	}
}

func once(t *testing.T, server, sql string) error {
	return administer(t.Context(), server, func(conn *pgx.Conn) error { return execute(t.Context(), conn, sql) })
}
