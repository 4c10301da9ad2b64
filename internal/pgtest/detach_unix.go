//go:build unix

package pgtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"sync"
	"syscall"
)

// detach gives the command a session of its own, so that a Ctrl-C for this
// process does not reach the server before the watchdog has done its work. If
// this process is root, it also sets another user.
func detach(cmd *exec.Cmd) (err error) {
	if cmd.SysProcAttr, err = serverProcess(); err != nil {
		return err
	}
	cmd.SysProcAttr.Setsid = true
	return nil
}

// serverProcess has the user of a server's process, which is not root.
func serverProcess() (as *syscall.SysProcAttr, err error) {
	as = &syscall.SysProcAttr{}
	if os.Geteuid() == 0 {
		as.Credential, err = serverUser()
	}
	return as, err
}

// own gives a file to the server's user.
func own(file string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	user, err := serverUser()
	if err != nil {
		return err
	}
	return os.Lchown(file, int(user.Uid), int(user.Gid))
}

// serverUser is who runs the servers of root.
var serverUser = sync.OnceValues(func() (*syscall.Credential, error) { return firstUser("postgres", "nobody") })

// firstUser returns the first of the users that exists. Only a user with an
// entry in the password database will do: initdb looks itself up.
func firstUser(names ...string) (*syscall.Credential, error) {
	var causes []error
	for _, name := range names {
		u, err := user.Lookup(name)
		if err != nil {
			causes = append(causes, err)
			continue
		}
		uid, uidErr := strconv.ParseUint(u.Uid, 10, 32)
		gid, gidErr := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(uidErr, gidErr); err != nil {
			return nil, fmt.Errorf("user %s: %w", name, err)
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid), Groups: []uint32{uint32(gid)}}, nil
	}
	return nil, fmt.Errorf("PostgreSQL does not run as root, and there is no other user for it: %w", errors.Join(causes...))
}
