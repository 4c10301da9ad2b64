package memory

import (
	"context"
	"errors"

	"github.com/fencepost-go/fencepost/guard"
)

// Op is an operation that can be made to fail.
type Op string

// The operations.
const (
	Acquire Op = "acquire"
	Renew   Op = "renew"
	Release Op = "release"
)

// Fault is what happens to one operation.
type Fault uint8

// The faults.
const (
	None   Fault = iota
	Refuse       // the server says no: nothing is written
	Lose         // the server carries it out and the response is lost
)

// ErrInjected is the cause of every injected failure.
var ErrInjected = errors.New("a fault of the test")

// Fail applies faults to the next operations of a kind, one each.
func (s *Server) Fail(op Op, faults ...Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults[op] = append(s.faults[op], faults...)
}

// Hold holds this issuer's requests in its network from now on.
func (i *Issuer) Hold() {
	i.s.mu.Lock()
	defer i.s.mu.Unlock()
	i.holding = true
}

// Holding reports whether a request is in the network.
func (i *Issuer) Holding() bool {
	i.s.mu.Lock()
	defer i.s.mu.Unlock()
	return len(i.kept) > 0
}

// Deliver lets the requests in the network arrive in order, including those
// that their clients gave up, and holds no more.
func (i *Issuer) Deliver() {
	i.s.mu.Lock()
	defer i.s.mu.Unlock()
	i.holding = false
	for _, arrive := range i.kept {
		arrive()
	}
	i.kept = nil
}

// carry runs a request on the server, under its lock, with the fault set for it.
func carry[T any](ctx context.Context, i *Issuer, op Op, claim guard.Claim, run func() (T, error)) (none T, err error) {
	s := i.s
	s.mu.Lock()
	defer s.mu.Unlock()
	fault := None
	if queue := s.faults[op]; len(queue) > 0 {
		fault, s.faults[op] = queue[0], queue[1:]
	}
	switch {
	case fault == Refuse:
		return none, guard.Unavailable(string(op), claim, ErrInjected)
	case i.holding:
		var v T
		var failed error
		answered := make(chan struct{})
		i.kept = append(i.kept, func() {
			v, failed = run()
			close(answered)
		})
		s.mu.Unlock()
		defer s.mu.Lock()
		select {
		case <-answered:
			return v, failed
		case <-ctx.Done():
			return none, guard.OutcomeUnknown(string(op), claim, context.Cause(ctx))
		}
	}
	v, err := run()
	if fault == Lose {
		return none, guard.OutcomeUnknown(string(op), claim, ErrInjected)
	}
	return v, err
}
