package process

import "syscall"

func attributes(a *syscall.SysProcAttr) *syscall.SysProcAttr {
	a = group(a)
	a.Pdeathsig = syscall.SIGKILL
	return a
}

// Pause sends SIGSTOP and returns when the whole process stands still; false if
// it has ended.
func (p *Process) Pause() bool {
	if p.cmd.Process.Signal(syscall.SIGSTOP) != nil {
		return false
	}
	for {
		// It waits for the stop alone, and leaves the end to Start.
		const byPID = 1 // P_PID
		_, _, err := syscall.Syscall6(syscall.SYS_WAITID, byPID, uintptr(p.PID()), 0, syscall.WSTOPPED, 0, 0)
		if err != syscall.EINTR {
			return err == 0
		}
	}
}
