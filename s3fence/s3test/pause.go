package s3test

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Stage is a point in the course of a request.
type Stage int

const (
	// BeforeApply is after the request was received and before its conditions
	// are decided.
	BeforeApply Stage = iota
	// AfterApply is after the request took effect and before the response is sent.
	AfterApply
)

// Pause holds requests until the test lets them go.
type Pause struct {
	injection *Injection
	arrived   chan *Paused
	done      chan struct{}
	once      sync.Once
}

// Paused is a request that is held.
type Paused struct {
	*Request
	// Status is the status of the response to come, at AfterApply.
	Status int

	free chan struct{}
	once sync.Once
}

// Pause holds the requests that match a rule, at the stage, in addition to the
// rule's own fault.
func (s *Server) Pause(rule Rule, stage Stage) *Pause {
	p := &Pause{arrived: make(chan *Paused), done: make(chan struct{})}
	deal := rule.dealer()
	rule.Decide = func(req *Request) Fault {
		f := deal(req)
		if stage == BeforeApply {
			before := f.Before
			f.Before = func(req *Request) {
				p.hold(s, &Paused{Request: req, free: make(chan struct{})})
				if before != nil {
					before(req)
				}
			}
			return f
		}
		after := f.After
		f.After = func(req *Request, status int) {
			p.hold(s, &Paused{Request: req, Status: status, free: make(chan struct{})})
			if after != nil {
				after(req, status)
			}
		}
		return f
	}
	if len(rule.Script) > 0 {
		// Its entries are dealt out above, one per request.
		if rule.Times == 0 || rule.Times > len(rule.Script) {
			rule.Times = len(rule.Script)
		}
		rule.Script = nil
	}
	p.injection = s.Inject(rule)
	s.rulesMu.Lock()
	s.pauses = append(s.pauses, p)
	s.rulesMu.Unlock()
	return p
}

func (p *Pause) hold(s *Server, h *Paused) {
	select {
	case p.arrived <- h:
	case <-p.done:
		return
	case <-s.closed:
		return
	}
	select {
	case <-h.free:
	case <-p.done:
	case <-s.closed:
	}
}

// Wait returns the next request that is held. Each is returned once.
func (p *Pause) Wait(ctx context.Context) (*Paused, error) {
	select {
	case h := <-p.arrived:
		return h, nil
	case <-p.done:
		return nil, errors.New("s3test: the pause was released")
	case <-p.injection.server.closed:
		return nil, errors.New("s3test: the server was closed")
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Release lets all held requests go on and holds no more.
func (p *Pause) Release() {
	p.once.Do(func() {
		p.injection.Remove()
		close(p.done)
	})
}

// Release lets the request go on.
func (h *Paused) Release() { h.once.Do(func() { close(h.free) }) }

// meetingLimit ends the wait for another request that does not come.
const meetingLimit = time.Minute

// Meeting makes a race of writes certain. Its zero value is ready.
type Meeting struct{ first, second signals }

// Join is for [Fault.Between]. It returns when two writes of one key have been
// decided on the same condition; a third goes on at once. It is for races only,
// because a lone write waits for a minute.
func (m *Meeting) Join(r *Request) {
	if v := version(r); !m.first.send(v) {
		m.second.send(v)
	} else {
		m.second.wait(v)
	}
}

// version names what a conditional request is about.
func version(r *Request) string { return r.Bucket + "/" + r.Key + " " + r.Header.Get("If-Match") }

// signals are sent once for each name, and waited for any number of times.
type signals struct{ sent, channels sync.Map }

func (s *signals) of(name string) chan struct{} {
	c, _ := s.channels.LoadOrStore(name, make(chan struct{}))
	return c.(chan struct{})
}

// send reports whether it was the first to send.
func (s *signals) send(name string) bool {
	_, again := s.sent.LoadOrStore(name, true)
	if !again {
		close(s.of(name))
	}
	return !again
}

func (s *signals) wait(name string) {
	select {
	case <-s.of(name):
	case <-time.After(meetingLimit):
	}
}
