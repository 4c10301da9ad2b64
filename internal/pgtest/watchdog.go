package pgtest

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

//go:embed watchdog.sh
var watchdogScript string

// patience bounds the waits that have no context: for the watchdog, and for the
// end of a server that is to stop.
const patience = 2 * time.Minute

// watchdog is the shell that takes a server down when the pipe to it closes, at
// the latest when this process ends.
type watchdog struct {
	dir  string // the server's; it makes it
	pid  int
	pipe *os.File      // its write end is held only by this process
	gone chan struct{} // closed when the shell has ended
}

// watch starts a watchdog, which makes the directory in one of the roots.
func watch(name string, roots []string) (*watchdog, error) {
	cmd, err := script(context.Background(), append([]string{"watch", name}, roots...)...)
	if err != nil {
		return nil, err
	}
	input, pipe, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("pgtest: %w", err)
	}
	defer input.Close()
	// A file, and not this process's own output: go test waits until every
	// holder of that has closed it, and a watchdog must not keep it waiting.
	cmd.Stdin = input
	var complaint strings.Builder
	cmd.Stderr = &complaint
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		pipe.Close()
		return nil, fmt.Errorf("pgtest: %w", err)
	}
	if err := cmd.Start(); err != nil {
		pipe.Close()
		return nil, fmt.Errorf("pgtest: start the watchdog: %w", err)
	}
	w := &watchdog{pid: cmd.Process.Pid, pipe: pipe, gone: make(chan struct{})}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	go func() {
		// How it ends shows in what it leaves.
		_ = cmd.Wait()
		close(w.gone)
	}()
	if err != nil {
		pipe.Close()
		<-w.gone
		return nil, fmt.Errorf("pgtest: %s", strings.TrimSpace(complaint.String()))
	}
	w.dir = strings.TrimSpace(line)
	return w, nil
}

// close ends the watchdog, and with it the server and its directory.
func (w *watchdog) close() error {
	if err := w.pipe.Close(); err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	select {
	case <-w.gone:
	case <-time.After(patience):
		return fmt.Errorf("pgtest: the watchdog of %s does not end", w.dir)
	}
	if _, err := os.Lstat(w.dir); !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("pgtest: %s could not be removed", w.dir)
	}
	return nil
}

// script prepares a command of the watchdog's script.
func script(ctx context.Context, args ...string) (*exec.Cmd, error) {
	return program(ctx, "/", "/bin/sh", append([]string{"-c", watchdogScript, "pgtest"}, args...)...)
}

// program prepares a program of the server's user, in a session of its own.
func program(ctx context.Context, dir, name string, args ...string) (*exec.Cmd, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	// The working directory of a test is often closed to that user.
	cmd.Dir = dir
	// Variables that would influence the server's programs are dropped, language
	// and time zone are fixed, and the shell finds ls, rm and sleep even where
	// PATH is empty.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "PG") })
	cmd.Env = append(cmd.Env, "LC_ALL=C", "TZ=UTC", "HOME=/", "PATH="+os.Getenv("PATH")+":/usr/bin:/bin:/usr/sbin:/sbin")
	if err := detach(cmd); err != nil {
		return nil, fmt.Errorf("pgtest: %w", err)
	}
	return cmd, nil
}

// output runs a program to its end. The error has what it printed.
func output(cmd *exec.Cmd, err error) error {
	if err != nil {
		return err
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("pgtest: %s: %w\n%s", cmd.Path, err, strings.TrimSpace(string(out)))
	}
	return nil
}
