package pgtest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// ErrStopped is returned for a server on which Stop was called.
var ErrStopped = errors.New("pgtest: the server was stopped for good")

// Kill ends the server as a crash would: SIGKILL for the postmaster and all its
// children at once. When it returns, none of them is running. Acknowledged
// commits are on disk as far as other processes can tell; Restart recovers
// them. Killing a server that is down does nothing. After this, StopImmediate and
// StopFast the directory stays, and Restart brings the server back.
func (s *Server) Kill() error { return s.unlessStopped(s.crash) }

// StopImmediate shuts the server down like pg_ctl stop -m immediate: no
// checkpoint, recovery at the next start. A server process that the test has
// stopped with SIGSTOP delays it by five seconds.
func (s *Server) StopImmediate() error {
	return s.unlessStopped(func() error { return s.shut("QUIT") })
}

// StopFast shuts the server down like pg_ctl stop -m fast: sessions are ended,
// and a checkpoint is written. It fails after two minutes if a session that
// the test has stopped with SIGSTOP cannot end.
func (s *Server) StopFast() error { return s.unlessStopped(func() error { return s.shut("INT") }) }

// Restart starts the server again on the same port and data, after a fast
// shutdown if it is running, and waits until it accepts connections.
func (s *Server) Restart(ctx context.Context) error {
	return s.unlessStopped(func() error {
		ctx, cancel := context.WithTimeout(ctx, startLimit)
		defer cancel()
		if err := s.shut("INT"); err != nil {
			return err
		}
		for {
			// Children of a postmaster that was killed from outside may linger,
			// and would keep a new one from starting.
			if err := s.crash(); err != nil {
				return err
			}
			err := s.launch(ctx)
			if err == nil {
				return nil
			}
			if !errors.Is(err, errPortTaken) || ctx.Err() != nil {
				// It must not come up later, when the caller relies on it being down.
				return errors.Join(err, s.crash())
			}
			// The URL is already in use, so there is only this port: wait for it.
			time.Sleep(50 * time.Millisecond)
		}
	})
}

// Stop ends the server for good and removes its directory. Further calls return
// the result of the first.
func (s *Server) Stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stopped {
		s.stopped = true
		s.stopErr = s.dog.close()
	}
	return s.stopErr
}

func (s *Server) unlessStopped(f func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return ErrStopped
	}
	return f()
}

// crash kills all processes of the server and waits until none is left.
func (s *Server) crash() error {
	if err := output(script(context.Background(), "crash", s.dog.dir, s.name, strconv.Itoa(s.PID()))); err != nil {
		return err
	}
	return s.await()
}

// shut sends the postmaster the signal for a shutdown mode, and waits for its
// end.
func (s *Server) shut(signal string) error {
	pid := s.PID()
	if pid == 0 {
		return nil
	}
	if err := output(script(context.Background(), "shut", signal, strconv.Itoa(pid))); err != nil && s.PID() != 0 {
		return err
	}
	return s.await()
}

// await waits for the end of the postmaster.
func (s *Server) await() error {
	p := s.postmaster.Load()
	if p == nil {
		return nil
	}
	select {
	case <-p.exited:
		return nil
	case <-time.After(patience):
		return fmt.Errorf("pgtest: postgres (process %d) does not end", p.pid)
	}
}
