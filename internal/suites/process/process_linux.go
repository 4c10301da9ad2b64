package process

import (
	"syscall"

	"golang.org/x/sys/unix"
)

func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// Pause sends SIGSTOP and returns when the whole process stands still; false if
// it has ended.
func (p *Process) Pause() bool {
	if p.cmd.Process.Signal(syscall.SIGSTOP) != nil {
		return false
	}
	for {
		err := unix.Waitid(unix.P_PID, p.cmd.Process.Pid, nil, unix.WSTOPPED, nil)
		if err != unix.EINTR {
			return err == nil
		}
	}
}
