package s3test

import (
	"context"
	"errors"
	"sync"
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

// Pause holds the requests that match a rule, at the stage, in addition to the rule's
// Fault, of which it sets Before or After. The rule has no Script and no Decide.
func (s *Server) Pause(rule Rule, stage Stage) *Pause {
	p := &Pause{arrived: make(chan *Paused), done: make(chan struct{})}
	hold := func(req *Request, status int) {
		p.hold(s, &Paused{Request: req, Status: status, free: make(chan struct{})})
	}
	if stage == BeforeApply {
		rule.Fault.Before = func(req *Request) { hold(req, 0) }
	} else {
		rule.Fault.After = hold
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
