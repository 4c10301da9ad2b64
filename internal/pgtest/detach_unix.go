//go:build unix

package pgtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"syscall"
)

// detach gives the command a session of its own, so that a Ctrl-C for this
// process reaches neither the supervisor nor the server before the supervisor
// has done its work. If this process is root, it also sets another user.
func detach(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if os.Geteuid() != 0 {
		return nil
	}
	credential, err := serverUser("postgres", "nobody")
	if err != nil {
		return err
	}
	cmd.SysProcAttr.Credential = credential
	return nil
}

// serverUser returns the first of the users that exists. Only a user with an
// entry in the password database will do: initdb looks itself up.
func serverUser(names ...string) (*syscall.Credential, error) {
	var causes []error
	for _, name := range names {
		u, err := user.Lookup(name)
		if err != nil {
			causes = append(causes, err)
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("user %s: %w", name, err)
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("user %s: %w", name, err)
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid), Groups: []uint32{uint32(gid)}}, nil
	}
	return nil, fmt.Errorf("PostgreSQL does not run as root, and there is no other user for it: %w",
		errors.Join(causes...))
}
