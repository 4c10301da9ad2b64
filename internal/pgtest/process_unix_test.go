//go:build unix

package pgtest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/internal/testkit"
)

// childVariable makes this test binary a program that starts a server and ends
// in the way that the variable's value names.
const childVariable = "CHILD_OF_PGTEST"

func TestMain(m *testing.M) {
	if end := os.Getenv(childVariable); end != "" {
		if err := child(end); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	// Tests that need a given server set it; the others use a private one.
	os.Unsetenv(databaseURLVariable)
	os.Exit(m.Run())
}

// started is what a child reports about its server.
type started struct{ Watchdog, Postmaster int }

func child(end string) error {
	ctx := context.Background()
	// In the case "start" it is killed meanwhile.
	server, err := Start(ctx, &Options{Fresh: end == "start"})
	if err != nil {
		return err
	}
	// One session that waits and one that computes, because they learn of the
	// postmaster's death in different ways.
	for _, query := range []string{"SELECT pg_sleep(600)", "SELECT count(*) FROM generate_series(1, 1000000000000)"} {
		conn, err := pgx.Connect(ctx, server.URL())
		if err != nil {
			return err
		}
		go conn.Exec(ctx, query)
	}
	if err := json.NewEncoder(os.Stdout).Encode(started{server.dog.pid, server.PID()}); err != nil {
		return err
	}
	switch end {
	case "exit":
		os.Exit(3)
	case "panic":
		panic("the end")
	case "killed":
		if err := server.Kill(); err != nil {
			return err
		}
		os.Exit(3)
	case "wait", "start":
		_, err = io.Copy(io.Discard, os.Stdin) // until the parent ends
	}
	return err
}

// parent is a child process together with the directory in which its server is.
type parent struct {
	started
	cmd        *exec.Cmd
	root, name string
}

// run starts a child and waits until its server runs, or with end "start" only
// until the server's directory is there.
func run(t *testing.T, end string, change ...func(*parent)) *parent {
	t.Helper()
	root, err := os.MkdirTemp(filepath.Dir(shared(t).Dir()), "pgtest-") // on a file system that this package chose
	if err == nil {
		err = os.Chmod(root, 0o777) // the server's user needs access
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	p := &parent{root: root, cmd: exec.Command(os.Args[0])}
	var stderr bytes.Buffer
	p.cmd.Env = append(os.Environ(), childVariable+"="+end, "TMPDIR="+p.root)
	p.cmd.Stderr = &stderr
	// A process group of its own, to send it signals as a terminal does.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	for _, f := range change {
		f(p)
	}
	if _, err := p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.cmd.Process.Kill() })
	if end == "start" {
		testkit.Eventually(t, "a directory", func() bool { return len(p.left(t)) > 1 })
		return p
	}
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	if err != nil {
		p.cmd.Wait()
		t.Fatalf("the child did not start a server: %v\n%s", err, stderr.String())
	}
	if err := json.Unmarshal(line, &p.started); err != nil {
		t.Fatal(err)
	}
	return p
}

// end sends the child's process group a signal, if it is not 0, and waits for
// the end of the child and of every process that holds its standard error, which
// is what go test waits for as well.
func (p *parent) end(t *testing.T, signal syscall.Signal) {
	t.Helper()
	if signal != 0 {
		if err := syscall.Kill(-p.cmd.Process.Pid, signal); err != nil {
			t.Fatal(err)
		}
	}
	p.cmd.WaitDelay = patience
	if err := p.cmd.Wait(); err == exec.ErrWaitDelay {
		t.Fatal("somebody holds the child's standard error")
	}
}

// left lists the directory and the processes of a child's server, which it does
// not find in the watchdog's way on Linux.
func (p *parent) left(t *testing.T) (found []string) {
	t.Helper()
	entries, err := os.ReadDir(p.root)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		p.name = entry.Name()
		found = append(found, "directory "+p.name)
	}
	out, err := exec.Command("ps", "-A", "-ww", "-o", "pid=,stat=,args=").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		ours := p.name != "" && strings.Contains(line, p.name) ||
			fields[0] == fmt.Sprint(p.Watchdog) || fields[0] == fmt.Sprint(p.Postmaster)
		if ours && !strings.HasPrefix(fields[1], "Z") {
			found = append(found, "process "+line)
		}
	}
	return found
}

// However the process ends, its server ends too and leaves nothing behind.
func TestNothingIsLeftBehind(t *testing.T) {
	for _, c := range []struct {
		end    string
		signal syscall.Signal
	}{
		{"exit", 0}, {"panic", 0}, {"killed", 0},
		{"wait", syscall.SIGINT}, {"wait", syscall.SIGTERM}, {"wait", syscall.SIGKILL}, {"start", syscall.SIGKILL},
	} {
		t.Run(fmt.Sprint(c.end, " ", c.signal), func(t *testing.T) {
			t.Parallel()
			p := run(t, c.end)
			p.end(t, c.signal)
			testkit.Eventually(t, "the end of all of it", func() bool { return len(p.left(t)) == 0 })
		})
	}
}

// The control: without its watchdog a server stays behind, and the check sees it while
// a server that ended later is gone.
func TestWithoutWatchdogTheServerIsLeftBehind(t *testing.T) {
	t.Parallel()
	p, later := run(t, "wait"), run(t, "wait")
	if err := syscall.Kill(p.Watchdog, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	p.end(t, syscall.SIGKILL)
	later.end(t, syscall.SIGKILL)
	testkit.Eventually(t, "the end of the later one", func() bool { return len(later.left(t)) == 0 })
	// The postmaster, two sessions, at least three background processes, and the
	// directory.
	if left := p.left(t); len(left) < 7 || !strings.HasPrefix(left[0], "directory ") {
		t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	}
	// This way the postmaster removes its shared memory.
	if err := syscall.Kill(p.Postmaster, syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the end of the postmaster", func() bool { return len(p.left(t)) == 1 })
}

// The data belongs to a user who is not root, alone.
func TestServerUser(t *testing.T) {
	t.Parallel()
	info, err := os.Stat(shared(t).data())
	if err != nil {
		t.Fatal(err)
	}
	owner := info.Sys().(*syscall.Stat_t).Uid
	if owner == 0 || os.Geteuid() != 0 && int(owner) != os.Geteuid() || info.Mode().Perm() != 0o700 {
		t.Errorf("the data belongs to user %d, with mode %v", owner, info.Mode())
	}
	if user, err := firstUser("no-such-user-here", "nobody"); err != nil || user.Uid == 0 {
		t.Errorf("user %+v, %v", user, err)
	}
	if _, err := firstUser("no-such-user-here"); err == nil {
		t.Error("no error for a user that does not exist")
	}
}

// Nothing is taken from an archive that is damaged anywhere.
func TestDamagedArchive(t *testing.T) {
	packed := &Server{dog: &watchdog{dir: t.TempDir()}, password: "secret"}
	if err := os.CopyFS(packed.dog.dir, fstest.MapFS{
		"password": {Data: []byte("secret")}, "data/PG_VERSION": {Data: []byte("18")}, "data/pg_notify": {Mode: fs.ModeDir | 0o700},
	}); err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(t.TempDir(), "new", "archive.zip")
	packed.pack(archive)
	sound, err := os.ReadFile(archive)
	if err != nil {
		t.Fatal(err)
	}
	unpacked := &Server{dog: &watchdog{dir: t.TempDir()}}
	if err := unpacked.unpack(archive); err != nil || unpacked.password != "secret" {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(unpacked.data(), "pg_notify")); err != nil || !info.IsDir() {
		t.Errorf("an empty directory: %v", err)
	}
	for i := range sound {
		flipped := bytes.Clone(sound)
		flipped[i] ^= 1
		for _, damaged := range [][]byte{sound[:i], flipped} {
			if err := os.WriteFile(archive, damaged, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := unpacked.unpack(archive); err == nil || !strings.Contains(err.Error(), "is damaged") {
				t.Fatalf("damage at byte %d of %d: %v", i, len(sound), err)
			}
		}
	}
}
