package pgtest

import (
	"context"
	"errors"
	"time"
)

// ErrStopped is returned for a server on which Stop was called.
var ErrStopped = errors.New("pgtest: the server was stopped for good")

// Kill ends the server as a crash would: SIGKILL for the postmaster and all its
// children at once. When it returns, none of them is running. Acknowledged
// commits are on disk as far as other processes can tell; Restart recovers
// them. Killing a server that is down does nothing.
func (s *Server) Kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return ErrStopped
	}
	return s.supervisor.crash()
}

// StopImmediate shuts the server down like pg_ctl stop -m immediate: no
// checkpoint, recovery at the next start. A server process that the test has
// stopped with SIGSTOP delays it by five seconds. The directory stays; Restart
// brings the server back.
func (s *Server) StopImmediate() error { return s.shut("QUIT") }

// StopFast shuts the server down like pg_ctl stop -m fast: sessions are ended,
// and a checkpoint is written. It fails after two minutes if a session that
// the test has stopped with SIGSTOP cannot end. The directory stays; Restart
// brings the server back.
func (s *Server) StopFast() error { return s.shut("INT") }

func (s *Server) shut(signal string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return ErrStopped
	}
	return s.supervisor.shut(signal)
}

// Restart starts the server again on the same port and data, after a fast
// shutdown if it is running, and waits until it accepts connections.
func (s *Server) Restart(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return ErrStopped
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	if s.supervisor.postmaster().running() {
		if err := s.supervisor.shut("INT"); err != nil {
			return err
		}
	}
	// Children of a postmaster that was killed from outside may linger, and
	// would keep a new one from starting.
	if err := s.supervisor.crash(); err != nil {
		return err
	}
	var taken error
	for {
		err := s.launch(ctx)
		if err == nil {
			return nil
		}
		if errors.Is(err, errPortTaken) {
			// The URL is already in use, so there is only this port: wait for it.
			taken = err
			select {
			case <-time.After(50 * time.Millisecond):
				continue
			case <-ctx.Done():
				return err
			}
		}
		// It must not come up later, when the caller relies on it being down.
		return errors.Join(taken, err, s.supervisor.crash())
	}
}

// Stop ends the server for good and removes its directory. Further calls return
// the result of the first.
func (s *Server) Stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stopped {
		s.stopped = true
		s.stopErr = s.supervisor.close()
	}
	return s.stopErr
}
