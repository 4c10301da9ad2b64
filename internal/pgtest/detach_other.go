//go:build !unix

package pgtest

import (
	"fmt"
	"os/exec"
	"runtime"
	"syscall"
)

// detach refuses: the watchdog needs Unix processes and a shell.
func detach(*exec.Cmd) error {
	return fmt.Errorf("no private server on %s; set FENCEPOST_DATABASE_URL", runtime.GOOS)
}

func serverProcess() (*syscall.SysProcAttr, error) { return nil, nil }

func own(string) error { return nil }
