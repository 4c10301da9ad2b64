//go:build unix

package pgtest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// childVariable makes this test binary a program that starts a server and ends
// in the way that the variable's value names.
const childVariable = "PGTEST_CHILD"

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
type started struct {
	Dir        string
	Supervisor int
	Postmaster int
}

func child(end string) error {
	ctx := context.Background()
	if end == "init" {
		// It is killed, usually before this returns.
		_, err := Start(ctx, nil)
		time.Sleep(2 * patience)
		return err
	}
	server, err := Start(ctx, nil)
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
	time.Sleep(50 * time.Millisecond)
	if err := json.NewEncoder(os.Stdout).Encode(started{server.Dir(), server.supervisor.pid, server.PID()}); err != nil {
		return err
	}
	switch end {
	case "return":
		return nil
	case "exit":
		os.Exit(3)
	case "panic":
		panic("the end")
	case "killed":
		if err := server.Kill(); err != nil {
			return err
		}
		os.Exit(3)
	}
	time.Sleep(2 * patience)
	return nil
}

// parent is a child process together with the directory in which its server is.
type parent struct {
	started
	cmd    *exec.Cmd
	root   string
	stderr bytes.Buffer
}

// newRoot makes a directory for one test's servers, next to the shared server's
// so that it is on a file system which this package chose.
func newRoot(t *testing.T) string {
	t.Helper()
	server := shared(t)
	root, err := os.MkdirTemp(filepath.Dir(server.Dir()), "pgtest-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	// The server's user needs access.
	if err := os.Chmod(root, 0o777); err != nil {
		t.Fatal(err)
	}
	return root
}

// run starts a child and waits until its server runs, unless the child is to
// end before that.
func run(t *testing.T, end string) *parent {
	t.Helper()
	p := &parent{root: newRoot(t), cmd: exec.Command(os.Args[0])}
	p.cmd.Env = append(os.Environ(), childVariable+"="+end, "TMPDIR="+p.root, databaseURLVariable+"=")
	p.cmd.Stderr = &p.stderr
	// A process group of its own, to send it signals as a terminal does.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.start(t, end)
	return p
}

func (p *parent) start(t *testing.T, end string) {
	t.Helper()
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.cmd.Process.Kill() })
	if end == "init" {
		return
	}
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	if err != nil {
		p.cmd.Wait()
		t.Fatalf("the child did not start a server: %v\n%s", err, p.stderr.String())
	}
	if err := json.Unmarshal(line, &p.started); err != nil {
		t.Fatal(err)
	}
}

// wait waits for the end of the child and of every process that holds its
// standard error, which is what go test waits for as well.
func (p *parent) wait(t *testing.T) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		p.cmd.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("the child has not ended, or somebody holds its standard error")
	}
}

// leftovers lists the processes and files of the servers under root.
func leftovers(root string) ([]string, error) {
	var found []string
	processes, err := processesOf(root)
	if err != nil {
		return nil, err
	}
	for _, p := range processes {
		found = append(found, "process "+p)
	}
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		found = append(found, "directory "+entry.Name())
	}
	return found, nil
}

// processesOf lists the processes that work in root or name it, or a server's
// directory in it, in their command line. It does not rely on the supervisor's
// ways of finding them.
func processesOf(root string) ([]string, error) {
	if runtime.GOOS != "linux" {
		out, err := exec.Command("ps", "-A", "-ww", "-o", "pid=,args=").Output()
		if err != nil {
			return nil, err
		}
		var found []string
		servers, _ := filepath.Glob(filepath.Join(root, "fencepost-pgtest-*"))
		for line := range strings.Lines(string(out)) {
			for _, mark := range append(servers, root) {
				if strings.Contains(line, mark) || strings.Contains(line, "postgres: "+filepath.Base(mark)) {
					found = append(found, strings.TrimSpace(line))
					break
				}
			}
		}
		return found, nil
	}
	directories, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var found []string
	for _, dir := range directories {
		// Processes end while we look, and a zombie has neither.
		cwd, _ := os.Readlink(filepath.Join(dir, "cwd"))
		args, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		if strings.HasPrefix(cwd, root) || bytes.Contains(args, []byte(root)) {
			line := string(bytes.ReplaceAll(args[max(0, len(args)-200):], []byte{0}, []byte{' '}))
			found = append(found, filepath.Base(dir)+" "+line)
		}
	}
	return found, nil
}

// alive reports whether a process runs. On Linux one that has ended may still be
// listed: a zombie, or one that the kernel is taking apart. It no longer has a
// working directory, which it leaves after closing its files.
func alive(pid int) bool {
	if syscall.Kill(pid, 0) == syscall.ESRCH {
		return false
	}
	if runtime.GOOS != "linux" {
		return true
	}
	_, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/cwd")
	return err == nil
}

// waitUntilClean fails the test if anything of the child's server stays behind.
// On an idle machine all is gone in a tenth of a second.
func (p *parent) waitUntilClean(t *testing.T) {
	t.Helper()
	begin := time.Now()
	for {
		found, err := leftovers(p.root)
		if err != nil {
			t.Fatal(err)
		}
		for _, pid := range []int{p.Supervisor, p.Postmaster} {
			if pid != 0 && alive(pid) {
				found = append(found, fmt.Sprint("process ", pid))
			}
		}
		if len(found) == 0 {
			t.Logf("clean after %v", time.Since(begin).Round(time.Millisecond))
			return
		}
		if time.Since(begin) > patience {
			t.Fatalf("left behind:\n%s", strings.Join(found, "\n"))
		}
		time.Sleep(10 * time.Millisecond)
	}
}
