//go:build !unix

package pgtest

import (
	"fmt"
	"os/exec"
	"runtime"
)

// detach refuses: the supervisor needs Unix processes and a shell.
func detach(*exec.Cmd) error {
	return fmt.Errorf("no private server on %s; set FENCEPOST_DATABASE_URL", runtime.GOOS)
}
