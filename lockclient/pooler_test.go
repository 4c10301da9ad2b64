package lockclient

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// behindPgBouncer returns a pool behind PgBouncer in transaction mode, with five
// connections to the server. PgBouncer goes when this process ends.
func behindPgBouncer(t *testing.T, direct *pgxpool.Pool) *pgxpool.Pool {
	t.Helper()
	path := "/usr/sbin/pgbouncer"
	if found, err := exec.LookPath("pgbouncer"); err == nil {
		path = found
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatal("there is no pgbouncer in PATH or the usual places; run .ci/setup tests to install it")
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	listener.Close()
	c := direct.Config().ConnConfig
	config := filepath.Join(t.TempDir(), "pgbouncer.ini")
	text := fmt.Sprintf("[databases]\nfive = host=%s port=%d dbname=%s user=%s password=%s pool_size=5\n"+
		"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = %d\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\n",
		c.Host, c.Port, c.Database, c.User, c.Password, port)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	for dir := filepath.Dir(config); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		os.Chmod(dir, 0o755)
	}
	// The shell ends it when the pipe that it reads is closed, however that comes.
	args := []string{"-c", `exec 3<&0; "$@" 3<&- & pid=$!; { read -r _ <&3; kill "$pid"; } & reader=$!; wait "$pid"; kill "$reader"`, "sh", path}
	if os.Getuid() == 0 { // which PgBouncer refuses to run as
		name := "nobody"
		if _, err := user.Lookup("postgres"); err == nil {
			name = "postgres"
		}
		args = append(args, "-u", name)
	}
	cmd := exec.Command("sh", append(args, config)...)
	var log strings.Builder
	cmd.Stderr, cmd.Stdout = &log, &log
	alive, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { alive.Close(); cmd.Wait() })
	pool := dial(t, fmt.Sprintf("postgres://%s@127.0.0.1:%d/five?sslmode=disable", c.User, port), func(c *pgxpool.Config) {
		c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	})
	eventually(t, "pgbouncer answers", func() bool { return pool.Ping(t.Context()) == nil })
	return pool
}

// TestPoolerNeverListens: behind PgBouncer in transaction mode no server process
// is left listening, so that other applications get no notifications; waiters
// poll and are granted. The control listens there in any case.
func TestPoolerNeverListens(t *testing.T) {
	for wake, leaks := range map[Wake]bool{WakeAuto: false, WakePoll: false, WakeNotify: true} {
		t.Run(string(wake), func(t *testing.T) {
			direct := migrated(t)
			pooled := behindPgBouncer(t, direct)
			client := newTestClient(t, pooled, &Options{Wake: wake, PollInterval: 10 * time.Millisecond})
			for range 5 {
				lease := mustTry(t, client, "r", time.Hour)
				got := waits(t, client, "r", time.Hour)
				eventually(t, "it is told who has the lease", func() bool { return refused(client, "r") })
				time.Sleep(50 * time.Millisecond) // it would listen by now
				if err := lease.Release(t.Context()); err != nil {
					t.Fatal(err)
				}
				(<-got).Release(t.Context())
			}
			// heard looks at the server processes as another application does.
			heard := func() (listening, foreign int) {
				for range 20 {
					conn, err := pooled.Acquire(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					mustExec(t, direct, `SELECT pg_notify('fencepost.leases', 'foreign')`)
					var n int
					if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_listening_channels()").Scan(&n); err != nil {
						t.Fatal(err)
					}
					listening += n
					ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
					if _, err := conn.Conn().WaitForNotification(ctx); err == nil {
						foreign++
					}
					cancel()
					conn.Release()
				}
				return listening, foreign
			}
			if leaks {
				eventually(t, "a server process listens", func() bool { listening, _ := heard(); return listening > 0 })
			}
			if err := client.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			listening, foreign := heard()
			if (listening+foreign > 0) != leaks {
				t.Errorf("after Close %d processes listened and %d foreign notifications came", listening, foreign)
			}
		})
	}
}
