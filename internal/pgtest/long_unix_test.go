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

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/internal/testkit"
)

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

// sessions opens one session that computes and one that sleeps.
func sessions(t *testing.T, server *Server) {
	t.Helper()
	for _, sql := range []string{"SELECT count(*) FROM generate_series(1, 1000000000000)", "SELECT pg_sleep(600)"} {
		conn, err := pgx.Connect(t.Context(), server.URL())
		if err != nil {
			t.Fatal(err)
		}
		go conn.Exec(t.Context(), sql)
	}
}

// Servers that begin at once make one archive, from which the next gets its
// identity unless it is to be fresh. A damaged archive is replaced.
func TestLongArchive(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	identity := func(opts *Options) string {
		server, err := Start(t.Context(), opts)
		if err != nil {
			t.Error(err)
			return ""
		}
		defer server.Stop()
		return ask[string](t, server.URL(), "SELECT system_identifier::text FROM pg_control_system()")
	}
	var group sync.WaitGroup
	for range 2 {
		group.Go(func() { identity(nil) })
	}
	group.Wait()
	first := identity(nil)
	if again, fresh := identity(nil), identity(&Options{Fresh: true}); again != first || fresh == first {
		t.Errorf("the identities are %s, %s and, fresh, %s", first, again, fresh)
	}
	archive, err := archiveFile(shared(t).bin)
	if err == nil {
		err = os.Truncate(archive, 1<<20)
	}
	if err != nil {
		t.Fatal(err)
	}
	if next := identity(nil); next == first || identity(nil) != next {
		t.Error("a damaged archive is used, or not replaced")
	}
	if entries, err := os.ReadDir(filepath.Dir(archive)); err != nil || len(entries) != 1 {
		t.Errorf("the archives are %v, %v", entries, err)
	}
}

// A user without privileges, and without a place for the archive.
func TestLongUnprivileged(t *testing.T) {
	t.Parallel()
	var binary string
	p := run(t, "return", func(p *parent) {
		binary = filepath.Join(p.root, "child") // where that user can read it
		content, err := os.ReadFile(os.Args[0])
		if err == nil {
			err = os.WriteFile(binary, content, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
		p.cmd.Path, p.cmd.Dir = binary, "/"
		p.cmd.Env = append(p.cmd.Env, "HOME=/dev/null")
		if os.Geteuid() == 0 {
			if p.cmd.SysProcAttr.Credential, err = firstUser("nobody"); err != nil {
				t.Fatal(err)
			}
		}
	})
	p.end(t, 0)
	if err := os.Remove(binary); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the end of all of it", func() bool { return len(p.left(t)) == 0 })
}

// The server is in the first root that will do, and nothing in the others.
func TestLongRoots(t *testing.T) {
	root := filepath.Dir(run(t, "exit").root)
	directory := func(name string, mode os.FileMode) string {
		dir := filepath.Join(root, "pgtest-roots-"+name)
		if err := errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, mode)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		return dir
	}
	closed := os.FileMode(0o500)
	if os.Geteuid() == 0 { // whose servers have another user
		closed = 0o700
	}
	unusable := []string{filepath.Join(root, "missing"), directory("closed", closed), directory(strings.Repeat("long", 30), 0o777), directory("it's", 0o777)}
	good := directory("good", 0o777)
	dog, err := watch("server", append(unusable, good))
	if err != nil {
		t.Fatal(err)
	}
	if dog.dir != filepath.Join(good, "server") {
		t.Errorf("the server is in %s", dog.dir)
	}
	if err := dog.close(); err != nil {
		t.Error(err)
	}
	if _, err := watch("server", unusable); err == nil || !strings.Contains(err.Error(), "no usable directory") {
		t.Errorf("error %v where no root will do", err)
	}
	for _, dir := range append(unusable[1:], good) {
		if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
			t.Errorf("in %s there are %v, %v", dir, entries, err)
		}
	}
}

// Every way to go down and come back keeps the URL and the rows.
func TestLongRestart(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	url := server.URL()
	for i, down := range []func() error{
		func() error { return nil }, server.StopFast, server.StopImmediate, server.Kill,
		func() error { return errors.Join(server.Kill(), server.Kill()) },
		func() error { return errors.Join(server.Kill(), server.StopImmediate()) },
		func() error { sessions(t, server); return syscall.Kill(server.PID(), syscall.SIGKILL) }, // its sessions linger
	} {
		n := ask[int](t, url, "CREATE TABLE IF NOT EXISTS kept (n int)", "INSERT INTO kept VALUES (1)", "SELECT count(*) FROM kept")
		if err := down(); err != nil || n != i+1 {
			t.Fatalf("way %d: %d rows, %v", i, n, err)
		}
		if err := server.Restart(t.Context()); err != nil || server.URL() != url {
			t.Fatalf("way %d: %v", i, err)
		}
	}
	// The URL is in use, so Restart waits for its port.
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
	refused := func() int {
		log, err := os.ReadFile(filepath.Join(server.Dir(), "server.log"))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(log), "Address already in use")
	}
	before, restarted := refused(), make(chan error, 1)
	go func() { restarted <- server.Restart(t.Context()) }()
	testkit.Eventually(t, "another try", func() bool { return refused() > before })
	listener.Close()
	if err := testkit.Receive(t, "the restart", restarted); err != nil {
		t.Error(err)
	}
	sessions(t, server)
	for range 2 {
		if err := server.Stop(); err != nil || server.PID() != 0 {
			t.Errorf("Stop: %v, process %d", err, server.PID())
		}
	}
	if err := server.Restart(t.Context()); !errors.Is(err, ErrStopped) {
		t.Errorf("Restart after Stop: %v", err)
	}
}

// Commits that were acknowledged survive Kill, which leaves no process.
func TestLongKillKeepsCommittedRows(t *testing.T) {
	t.Parallel()
	for _, durable := range []bool{false, true} {
		server := start(t, &Options{Durable: durable})
		if fsync := ask[string](t, server.URL(), "CREATE TABLE acknowledged (n int)", "SHOW fsync"); (fsync == "on") != durable || durable == strings.HasPrefix(server.Dir(), "/dev/shm/") {
			t.Errorf("durable %t: fsync is %s, in %s", durable, fsync, server.Dir())
		}
		sessions(t, server)
		conn, err := pgx.Connect(t.Context(), server.URL())
		if err != nil {
			t.Fatal(err)
		}
		acknowledged, reached := make(chan int), make(chan struct{})
		go func() {
			for n := 0; ; n++ {
				if _, err := conn.Exec(t.Context(), "INSERT INTO acknowledged VALUES ($1)", n+1); err != nil {
					acknowledged <- n
					return
				}
				if n == 200 {
					close(reached)
				}
			}
		}()
		<-reached
		if err := server.Kill(); err != nil || server.PID() != 0 {
			t.Fatalf("Kill: %v, process %d", err, server.PID())
		}
		p := &parent{name: server.name, root: t.TempDir()}
		if left := p.left(t); len(left) != 1 { // the watchdog
			t.Errorf("after Kill there are\n%s", strings.Join(left, "\n"))
		}
		want := <-acknowledged
		if err := server.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		// The insert without an answer may count.
		if got := ask[int](t, server.URL(), "SELECT count(*) FROM acknowledged"); got != want && got != want+1 {
			t.Errorf("%d rows after the crash, %d were acknowledged", got, want)
		}
	}
}

// The control: Kill is a crash, which loses what the server keeps in memory, and
// stopped processes do not keep a server from going down.
func TestLongKillLosesWhatWasNotWritten(t *testing.T) {
	t.Parallel()
	server := start(t, &Options{Settings: map[string]string{"synchronous_commit": "off", "wal_writer_delay": "10s"}})
	ask[int](t, server.URL(), "CREATE TABLE lost (n int)", "CHECKPOINT", "SELECT 1")
	// Only a session may write from here on: whether the server's own writers
	// run before the kill would be chance.
	var pids []int
	testkit.Eventually(t, "the server's writers", func() bool {
		pids = ask[[]int](t, server.URL(), `SELECT coalesce(array_agg(pid), '{}') FROM pg_stat_activity
			WHERE backend_type IN ('walwriter', 'background writer', 'checkpointer')`)
		return len(pids) == 3
	})
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	ask[int](t, server.URL(), "INSERT INTO lost VALUES (1)", "SELECT 1")
	if err := errors.Join(server.Kill(), server.Restart(t.Context())); err != nil {
		t.Fatal(err)
	}
	if n := ask[int](t, server.URL(), "SELECT count(*) FROM lost"); n != 0 {
		t.Errorf("%d rows survived a crash before they were written", n)
	}
	for _, shut := range []func() error{server.StopImmediate, server.StopFast, server.Stop} {
		if err := errors.Join(server.Restart(t.Context()), syscall.Kill(server.PID(), syscall.SIGSTOP), shut()); err != nil || server.PID() != 0 {
			t.Errorf("a stopped postmaster: %v, process %d", err, server.PID())
		}
	}
}

// An error has the message from postgres, and that of the context.
func TestLongSettings(t *testing.T) {
	t.Parallel()
	server := start(t, &Options{Settings: map[string]string{"fencepost.quoted": `it's a \ here`, "max_connections": "17"}})
	if got := ask[string](t, server.URL(), "SELECT concat_ws(' ', current_setting('fencepost.quoted'), current_setting('max_connections'), current_setting('synchronous_commit'))"); got != `it's a \ here 17 on` {
		t.Errorf("the settings are %s", got)
	}
	_, err := Start(t.Context(), &Options{Settings: map[string]string{"work_mem": "plenty"}})
	if err == nil || !strings.Contains(err.Error(), `invalid value for parameter "work_mem"`) {
		t.Errorf("error %v does not quote the log", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Start(ctx, &Options{Fresh: true}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want that of the context", err)
	}
	wrong, err := pgx.Connect(t.Context(), strings.Replace(server.URL(), server.password, randomHex(16), 1))
	if err == nil || !strings.Contains(err.Error(), "password authentication failed") {
		t.Errorf("a wrong password: %v, %v", wrong, err)
	}
}

// A standby follows its primary, can be promoted, and leaves nothing behind.
func TestLongStandby(t *testing.T) {
	t.Parallel()
	primary := start(t, nil)
	ask[int](t, primary.URL(), "CREATE TABLE early (id int)", "SELECT 1")
	standby, err := primary.Standby(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ask[int](t, primary.URL(), "CREATE TABLE late (id int)", "SELECT 1")
	testkit.Eventually(t, "the primary's tables on the standby", func() bool {
		return ask[bool](t, standby.URL(), "SELECT count(*) = 2 AND pg_is_in_recovery() FROM pg_class WHERE relname IN ('early', 'late')")
	})
	if !ask[bool](t, standby.URL(), "SELECT pg_promote(true, 60)", "DROP TABLE early", "SELECT NOT pg_is_in_recovery()") {
		t.Error("it is not a primary")
	}
	if err := standby.Stop(); err != nil {
		t.Error(err)
	}
}
