//go:build unix

package gateway

import (
	"fmt"
	"io"
	"os/exec"
	"syscall"
)

// janitor is a shell that cleans up if this process ends before it could: it
// waits on a pipe that only this process holds.
type janitor struct {
	cmd  *exec.Cmd
	pipe io.WriteCloser
}

// script is told the process's ID in its first line, and in a second that all
// is well. If a line is missing, this process has ended.
const script = `
read -r pid || pid=
if ! read -r word; then
	if [ -n "$pid" ]; then kill -9 "$pid"; fi
	# It may still be writing.
	for try in 1 2 3 4 5 6 7 8 9 10; do
		rm -rf "$1" && break
		sleep 0.1
	done
fi
`

func newJanitor(dir string) (*janitor, error) {
	j := &janitor{cmd: exec.Command("/bin/sh", "-c", script, "janitor", dir)}
	// Detached from the terminal, so that Ctrl-C does not end it as well.
	j.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	j.cmd.Dir = "/"
	pipe, err := j.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	j.pipe = pipe
	if err := j.cmd.Start(); err != nil {
		return nil, fmt.Errorf("gateway: start the janitor: %w", err)
	}
	return j, nil
}

func (j *janitor) watch(pid int) error {
	_, err := fmt.Fprintln(j.pipe, pid)
	return err
}

// dismiss ends the janitor when there is nothing left to clean up.
func (j *janitor) dismiss() error {
	// A line too many does no harm where no process was started.
	if _, err := fmt.Fprint(j.pipe, "\ndone\n"); err != nil {
		return err
	}
	if err := j.pipe.Close(); err != nil {
		return err
	}
	return j.cmd.Wait()
}
