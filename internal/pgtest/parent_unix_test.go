//go:build unix

package pgtest

import (
	"os"
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
