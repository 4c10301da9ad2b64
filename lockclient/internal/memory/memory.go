// Package memory is the lease server in memory: what locktest is made of, apart
// from it so that its own tests can break it.
package memory

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/bridge"
)

// Server grants leases as the real one does, by its own clock: time.Now, moved
// forward by Advance.
type Server struct {
	mu     sync.Mutex
	rows   map[string]*row
	ahead  time.Duration // how far the clock was moved
	began  time.Time
	ears   map[*ear]struct{}
	faults map[Op][]Fault
	moved  []func()
}

var _ bridge.Issuer = (*Server)(nil)

type row struct {
	token             guard.Token
	leaseID, owner    string // "" is free
	acquired, expires time.Time
}

type ear struct {
	resource string
	ring     func()
}

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
	Lose         // the server does it and the answer is lost
	Drop         // the request is lost, which to the client looks the same
)

// ErrInjected is the cause of every failure that was asked for.
var ErrInjected = errors.New("a fault of the test")

// New returns an empty server.
func New() *Server {
	return &Server{rows: map[string]*row{}, began: time.Now(), ears: map[*ear]struct{}{}, faults: map[Op][]Fault{}}
}

// Now is the server's time.
func (s *Server) Now() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now()
}

func (s *Server) now() time.Time { return time.Now().Add(s.ahead) }

// Clock is the clients' clock, which runs as the server's.
func (s *Server) Clock() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.began) + s.ahead
}

// OnMove has f called when the clock was moved.
func (s *Server) OnMove(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.moved = append(s.moved, f)
}

// Move moves the clock forward.
func (s *Server) Move(d time.Duration) {
	s.mu.Lock()
	s.ahead += d
	moved := s.moved
	s.mu.Unlock()
	for _, f := range moved {
		f()
	}
}

// Fail gives the next operations of a kind these fates.
func (s *Server) Fail(op Op, faults ...Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults[op] = append(s.faults[op], faults...)
}

// fate takes the next fault of an operation.
func (s *Server) fate(op Op) Fault {
	queue := s.faults[op]
	if len(queue) == 0 {
		return None
	}
	s.faults[op] = queue[1:]
	return queue[0]
}

func failure(f Fault, op Op, claim guard.Claim) error {
	if f == Refuse {
		return guard.Unavailable(string(op), claim, ErrInjected)
	}
	return guard.OutcomeUnknown(string(op), claim, ErrInjected)
}

// Acquire is the statement of that name.
func (s *Server) Acquire(_ context.Context, r bridge.Request) (bridge.Answer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fault := s.fate(Acquire)
	claim := guard.Claim{Resource: r.Resource, LeaseID: r.LeaseID}
	if fault == Refuse || fault == Drop {
		return bridge.Answer{}, failure(fault, Acquire, claim)
	}
	a := bridge.Answer{Sent: time.Since(s.began) + s.ahead}
	if a.Held = s.holder(r.Resource, r.LeaseID); a.Held == nil {
		now := s.now()
		l := s.row(r.Resource)
		own := l.leaseID == r.LeaseID
		a.Reclaimed = !own && l.leaseID != ""
		if !own || !l.expires.After(now) {
			if l.token >= guard.MaxToken {
				return bridge.Answer{}, guard.Unavailable(string(Acquire), claim, errors.New("the tokens are used up"))
			}
			l.token++
			l.acquired, l.expires = now, time.Time{}
		}
		l.leaseID, l.owner = r.LeaseID, r.Owner
		if until := now.Add(r.TTL); until.After(l.expires) {
			l.expires = until
		}
		a.Granted, a.Token, a.AcquiredAt = true, l.token, l.acquired
	}
	if fault == Lose {
		return bridge.Answer{}, failure(fault, Acquire, claim)
	}
	return a, nil
}

func (s *Server) row(resource string) *row {
	l := s.rows[resource]
	if l == nil {
		l = &row{}
		s.rows[resource] = l
	}
	return l
}

// Holder says who but leaseID has the lease.
func (s *Server) Holder(resource, leaseID string) *bridge.Held {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.holder(resource, leaseID)
}

func (s *Server) holder(resource, leaseID string) *bridge.Held {
	l, now := s.rows[resource], s.now()
	if l == nil || l.leaseID == "" || l.leaseID == leaseID || !l.expires.After(now) {
		return nil
	}
	return &bridge.Held{Owner: l.owner, Token: l.token, LeaseID: l.leaseID, ExpiresAt: l.expires, Remaining: l.expires.Sub(now)}
}

// Renew is the statement of that name.
func (s *Server) Renew(_ context.Context, claim guard.Claim, ttl time.Duration) (sent time.Duration, held bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sent = time.Since(s.began) + s.ahead
	fault := s.fate(Renew)
	if fault == Refuse || fault == Drop {
		return 0, false, failure(fault, Renew, claim)
	}
	l, now := s.rows[claim.Resource], s.now()
	if held = l != nil && l.leaseID == claim.LeaseID && l.token == claim.Token && l.expires.After(now); held {
		l.expires = now.Add(ttl)
	}
	if fault == Lose {
		return 0, false, failure(fault, Renew, claim)
	}
	return sent, held, nil
}

// Release is the statement of that name.
func (s *Server) Release(_ context.Context, claim guard.Claim) (freed bool, err error) {
	s.mu.Lock()
	fault := s.fate(Release)
	if fault == Refuse || fault == Drop {
		s.mu.Unlock()
		return false, failure(fault, Release, claim)
	}
	l := s.rows[claim.Resource]
	if freed = l != nil && l.leaseID == claim.LeaseID && (claim.Token == guard.NoToken || l.token == claim.Token); freed {
		l.leaseID = ""
	}
	rings := s.listeners(claim.Resource, freed)
	s.mu.Unlock()
	for _, ring := range rings {
		ring()
	}
	if fault == Lose {
		return false, failure(fault, Release, claim)
	}
	return freed, nil
}

func (s *Server) listeners(resource string, freed bool) (rings []func()) {
	for e := range s.ears {
		if freed && e.resource == resource {
			rings = append(rings, e.ring)
		}
	}
	return rings
}

// Subscribe has ring called at every release.
func (s *Server) Subscribe(resource string, ring func()) (cancel func()) {
	e := &ear{resource, ring}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ears[e] = struct{}{}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.ears, e)
	}
}

// Awaited reports whether somebody has subscribed to resource.
func (s *Server) Awaited(resource string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for e := range s.ears {
		if e.resource == resource {
			return true
		}
	}
	return false
}

// Expire ends a lease at once, as the server's clock would; false if nobody has
// it. The holder is not told.
func (s *Server) Expire(resource string) bool {
	s.mu.Lock()
	held := s.holder(resource, "")
	if held != nil {
		s.rows[resource].expires = s.now()
	}
	rings := s.listeners(resource, held != nil)
	s.mu.Unlock()
	for _, ring := range rings {
		ring()
	}
	return held != nil
}

// Steal grants the lease to another owner, whoever has it.
func (s *Server) Steal(resource, owner string, ttl time.Duration) guard.Claim {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, now := s.row(resource), s.now()
	l.token++
	l.leaseID, l.owner = "stolen-"+l.token.String(), owner
	l.acquired, l.expires = now, now.Add(ttl)
	return guard.Claim{Resource: resource, Token: l.token, LeaseID: l.leaseID}
}

// Last returns the last token that was granted on resource.
func (s *Server) Last(resource string) guard.Token {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.rows[resource]; l != nil {
		return l.token
	}
	return guard.NoToken
}
