//go:build unix

package pgtest

import (
	"syscall"
	"testing"
)

// Processes that a test has stopped with SIGSTOP, to play a holder that pauses,
// do not keep a server from going down.
func TestStoppedProcesses(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	conn := connect(t, server.URL())
	stop := func(pid int) {
		t.Helper()
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	backend := int(conn.PgConn().PID())
	stop(backend)
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	if alive(backend) {
		t.Error("a stopped session survives Kill")
	}
	for _, shut := range []func() error{server.StopImmediate, server.StopFast} {
		if err := server.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		postmaster := server.PID()
		stop(postmaster)
		if err := shut(); err != nil || alive(postmaster) {
			t.Errorf("error %v, the postmaster lives: %v", err, alive(postmaster))
		}
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	postmaster, backend := server.PID(), int(connect(t, server.URL()).PgConn().PID())
	stop(backend)
	stop(postmaster)
	if err := server.Stop(); err != nil || alive(postmaster) || alive(backend) {
		t.Errorf("Stop: error %v, the postmaster lives: %v, the session lives: %v",
			err, alive(postmaster), alive(backend))
	}
}
