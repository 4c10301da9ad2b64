package s3test

import (
	"sync"
	"time"
)

// meetingLimit ends a wait for another request that does not come.
const meetingLimit = time.Minute

// Meeting makes a race of writes certain. Its zero value is ready.
type Meeting struct{ first, second signals }

// Join is for [Fault.Between]. It returns when two writes of one key have been
// decided on the same condition; a third goes on at once. It is for races only,
// as a write that stays alone waits for a minute.
func (m *Meeting) Join(r *Request) {
	if v := version(r); !m.first.send(v) {
		m.second.send(v)
	} else {
		m.second.wait(v)
	}
}

// OvertakenDeletes makes a race of deletes and writes on one condition certain:
// the deletes are decided before any write is, and take effect after the first
// write has. Its zero value is ready.
type OvertakenDeletes struct{ decided, applied signals }

// Fault is that of a DELETE or a PUT in such a race. Neither may be alone.
func (d *OvertakenDeletes) Fault(r *Request) Fault {
	v := version(r)
	if r.Op == DeleteObject {
		return Fault{Between: func(*Request) {
			d.decided.send(v)
			d.applied.wait(v)
		}}
	}
	return Fault{
		Before: func(*Request) { d.decided.wait(v) },
		After:  func(*Request, int) { d.applied.send(v) },
	}
}

// version names what a conditional request is about.
func version(r *Request) string { return r.Bucket + "/" + r.Key + " " + r.Header.Get("If-Match") }

// signals are sent once for each name, and waited for any number of times.
type signals struct {
	mu sync.Mutex
	by map[string]*signal
}

type signal struct {
	sent bool
	c    chan struct{}
}

// of returns the signal of that name. s.mu is held.
func (s *signals) of(name string) *signal {
	if s.by == nil {
		s.by = map[string]*signal{}
	}
	if s.by[name] == nil {
		s.by[name] = &signal{c: make(chan struct{})}
	}
	return s.by[name]
}

// send reports whether it was the first to send.
func (s *signals) send(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.of(name)
	if one.sent {
		return false
	}
	one.sent = true
	close(one.c)
	return true
}

func (s *signals) wait(name string) {
	s.mu.Lock()
	c := s.of(name).c
	s.mu.Unlock()
	timer := time.NewTimer(meetingLimit)
	defer timer.Stop()
	select {
	case <-c:
	case <-timer.C:
	}
}
