//go:build unix

package pgtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// However the process ends, its server ends too and leaves nothing behind.
func TestNothingIsLeftBehind(t *testing.T) {
	tests := []struct {
		name   string
		end    string
		signal syscall.Signal
	}{
		{"os.Exit without Stop", "exit", 0},
		{"panic", "panic", 0},
		{"os.Exit after Kill", "killed", 0},
		{"SIGINT", "wait", syscall.SIGINT},
		{"SIGTERM", "wait", syscall.SIGTERM},
		{"SIGKILL", "wait", syscall.SIGKILL},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := run(t, test.end)
			if test.signal != 0 {
				// To the whole group, as a terminal sends it.
				if err := syscall.Kill(-p.cmd.Process.Pid, test.signal); err != nil {
					t.Fatal(err)
				}
			}
			p.wait(t)
			p.waitUntilClean(t)
		})
	}
}

// A process killed while initdb runs, or before it does, leaves nothing either.
func TestNothingIsLeftBehindByAnUnfinishedStart(t *testing.T) {
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

// The control: without its supervisor a server stays behind, the check notices
// its processes and its directory, and a process that waits for the output of
// the child is not kept waiting by the server.
func TestWithoutSupervisorTheServerIsLeftBehind(t *testing.T) {
	t.Parallel()
	p := run(t, "wait")
	if err := syscall.Kill(p.Supervisor, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	p.wait(t)
	time.Sleep(500 * time.Millisecond)
	found, err := leftovers(p.root)
	if err != nil {
		t.Fatal(err)
	}
	var processes, directories int
	for _, f := range found {
		if strings.HasPrefix(f, "process ") {
			processes++
		} else {
			directories++
		}
	}
	// The postmaster, two sessions and at least three background processes.
	if processes < 6 || directories != 1 || !alive(p.Postmaster) {
		t.Errorf("%d processes and %d directories noticed, postmaster alive: %v; want at least 6, 1, true:\n%s",
			processes, directories, alive(p.Postmaster), strings.Join(found, "\n"))
	}
	// Stop the server in the way that removes its shared memory, then remove
	// its directory.
	if err := syscall.Kill(p.Postmaster, syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	for begin := time.Now(); alive(p.Postmaster); time.Sleep(10 * time.Millisecond) {
		if time.Since(begin) > patience {
			t.Fatal("the postmaster does not end")
		}
	}
	if err := os.RemoveAll(p.Dir); err != nil {
		t.Fatal(err)
	}
}

// A supervisor that is told to end also ends its server.
func TestSupervisorTerminated(t *testing.T) {
	t.Parallel()
	p := run(t, "wait")
	if err := syscall.Kill(p.Supervisor, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.waitUntilClean(t)
}

// The package works for an unprivileged user, whoever runs this test.
func TestUnprivileged(t *testing.T) {
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
