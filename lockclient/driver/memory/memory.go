// Package memory issues leases in memory: for tests, for which package locktest
// is more convenient, and for a single process that forgets everything when it
// ends. Tokens begin at 1 in every [Server], so keep no fence's marks beyond
// it.
//
// A [Server] is what the issuers of one test share, as processes share a
// database. It passes the suite of package drivertest.
//
// Time is the server's own: it runs as time.Now does, in a bubble of
// testing/synctest as well, and [Server.Move] moves it forward.
package memory

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

// spentFor is how long a spent lease ID is remembered.
const spentFor = time.Hour

// Server keeps the leases. It is safe for concurrent use.
type Server struct {
	mu      sync.Mutex
	began   time.Time
	ahead   time.Duration // how far the clock was moved
	rows    map[string]*row
	watches map[*watch]struct{}
	faults  map[Op][]Fault
}

type row struct {
	token             guard.Token
	leaseID           string // "" is free
	owner, metadata   string
	acquired, expires time.Time
	spent             map[string]time.Time // until when
}

type watch struct {
	resource string
	wake     func()
}

// NewServer returns an empty server.
func NewServer() *Server {
	return &Server{
		began: time.Now(), rows: map[string]*row{}, watches: map[*watch]struct{}{},
		faults: map[Op][]Fault{},
	}
}

// Issuer is one process's connection to a [Server], with a network in between.
type Issuer struct {
	s       *Server
	holding bool     // guarded by the server's mutex
	kept    []func() // requests in the network
}

var (
	_ driver.Issuer = (*Issuer)(nil)
	_ driver.Clock  = (*Issuer)(nil)
)

// Issuer returns another process's connection to the server.
func (s *Server) Issuer() *Issuer { return &Issuer{s: s} }

// Limits: a thousand renewals in a call, and metadata of 1,000 bytes.
func (i *Issuer) Limits() driver.Limits { return driver.Limits{Batch: 1000, MetadataBytes: 1000} }

// Close does nothing.
func (i *Issuer) Close() error { return nil }

// Now is the clock of the holders, which runs with the server's.
func (i *Issuer) Now() time.Duration { return i.s.clock() }

// Acquire grants or refuses.
func (i *Issuer) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if ctx.Err() != nil { // nothing is sent
		return driver.Grant{}, guard.Unavailable(string(Acquire), r.Claim(), context.Cause(ctx))
	}
	notAfter, from := i.s.Now().Add(r.Timeout), i.s.clock()
	return carry(ctx, i, Acquire, r.Claim(), func() (driver.Grant, error) {
		grant, err := i.acquire(r, notAfter)
		if err == nil {
			grant.From = from
		}
		return grant, err
	})
}

func (i *Issuer) acquire(r driver.Request, notAfter time.Time) (grant driver.Grant, err error) {
	s, now := i.s, i.s.now()
	l := s.rows[r.Resource]
	if l == nil {
		l = &row{}
	}
	own := l.leaseID == r.LeaseID && l.owner == r.Owner
	switch {
	case !now.Before(notAfter):
		return grant, guard.Unavailable(string(Acquire), r.Claim(), driver.ErrLate)
	case l.spent[r.LeaseID].After(now):
		return grant, driver.ErrLeaseIDSpent
	case !own && l.leaseID == r.LeaseID && l.expires.After(now):
		return grant, driver.LeaseIDInUse(r.LeaseID, l.owner)
	case s.holder(r.Resource, r.LeaseID) != nil:
		return grant, s.holder(r.Resource, r.LeaseID)
	case (!own || !l.expires.After(now)) && l.token >= guard.MaxToken:
		return grant, guard.Setup(string(Acquire), r.Claim(), errors.New("the token space is exhausted: use another resource name"))
	}
	s.rows[r.Resource] = l
	grant.Reclaimed = !own && l.leaseID != ""
	if !own || !l.expires.After(now) {
		l.token++
		l.acquired, l.expires = now, time.Time{}
	}
	l.leaseID, l.owner, l.metadata = r.LeaseID, r.Owner, r.Metadata
	if until := now.Add(r.TTL); until.After(l.expires) {
		l.expires = until
	}
	grant.Token, grant.AcquiredAt = l.token, l.acquired
	return grant, nil
}

// Renew extends leases that still run.
func (i *Issuer) Renew(ctx context.Context, renewals []driver.Renewal, results []driver.Renewed) {
	from := i.s.clock()
	for n, r := range renewals {
		renewed, err := carry(ctx, i, Renew, r.Claim, func() (driver.Renewed, error) {
			now := i.s.now()
			l := i.s.rows[r.Claim.Resource]
			if l == nil || l.leaseID != r.Claim.LeaseID || l.token != r.Claim.Token || !l.expires.After(now) {
				return driver.Renewed{State: driver.Over}, nil
			}
			if until := now.Add(r.TTL); until.After(l.expires) {
				l.expires = until
			}
			return driver.Renewed{State: driver.Extended, From: from}, nil
		})
		renewed.Err = err
		results[n] = renewed
	}
}

// Release frees the claim's lease; without a token it invalidates the lease ID.
func (i *Issuer) Release(ctx context.Context, claim guard.Claim) (freed bool, err error) {
	return carry(ctx, i, Release, claim, func() (bool, error) {
		s, now := i.s, i.s.now()
		l := s.rows[claim.Resource]
		if claim.Token == guard.NoToken {
			l = s.row(claim.Resource)
			maps.DeleteFunc(l.spent, func(_ string, until time.Time) bool { return !until.After(now) })
			if l.spent == nil {
				l.spent = map[string]time.Time{}
			}
			l.spent[claim.LeaseID] = now.Add(spentFor)
		}
		if l == nil || l.leaseID != claim.LeaseID || claim.Token != guard.NoToken && l.token != claim.Token {
			return false, nil
		}
		s.free(claim.Resource, l, now)
		return true, nil
	})
}

// free ends the lease and wakes all that wait.
func (s *Server) free(resource string, l *row, now time.Time) {
	l.leaseID = ""
	if l.expires.After(now) {
		l.expires = now
	}
	s.wake(resource)
}

// wake calls the watches of a resource and ends them.
func (s *Server) wake(resource string) {
	for w := range s.watches {
		if w.resource == resource {
			delete(s.watches, w)
			go w.wake()
		}
	}
}

// Watch returns who has the lease, and calls wake at its release unless it only
// looks, without a lease ID.
func (i *Issuer) Watch(_ context.Context, r driver.Watch, wake func()) (driver.Watching, error) {
	s := i.s
	s.mu.Lock()
	defer s.mu.Unlock()
	held := s.holder(r.Resource, r.LeaseID)
	if held == nil || r.LeaseID == "" {
		return driver.Watching{Held: held, Stop: func() {}}, nil
	}
	w := &watch{resource: r.Resource, wake: wake}
	s.watches[w] = struct{}{}
	return driver.Watching{Held: held, Stop: func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watches, w)
	}}, nil
}

func (s *Server) row(resource string) *row {
	l := s.rows[resource]
	if l == nil {
		l = &row{}
		s.rows[resource] = l
	}
	return l
}

// holder says who but leaseID has the lease.
func (s *Server) holder(resource, leaseID string) *driver.HeldError {
	l, now := s.rows[resource], s.now()
	if l == nil || l.leaseID == "" || l.leaseID == leaseID || !l.expires.After(now) {
		return nil
	}
	return &driver.HeldError{
		Resource: resource, Owner: l.owner, Metadata: l.metadata, Token: l.token, LeaseID: l.leaseID,
		ExpiresAt: l.expires, Remaining: l.expires.Sub(now),
	}
}

// Now is the server's time.
func (s *Server) Now() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now()
}

func (s *Server) now() time.Time { return time.Now().Add(s.ahead) }

// clock is the holders' clock, which is never zero.
func (s *Server) clock() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return 1 + time.Since(s.began) + s.ahead
}

// Move moves the clock forward. Clients look at it again within a second, as after a
// suspend, since timers do not notice.
func (s *Server) Move(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ahead += d
}

// Expire ends a lease at once, as the server's clock would; false if nobody has
// it. The holder is not notified.
func (s *Server) Expire(resource string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	held := s.holder(resource, "") != nil
	if held {
		s.rows[resource].expires = s.now()
		s.wake(resource)
	}
	return held
}

// Steal grants the lease to another owner, whoever has it.
func (s *Server) Steal(resource, owner string, ttl time.Duration) guard.Claim {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, now := s.row(resource), s.now()
	l.token++
	l.leaseID, l.owner, l.metadata = "stolen-"+l.token.String(), owner, ""
	l.acquired, l.expires = now, now.Add(ttl)
	return guard.Claim{Resource: resource, Token: l.token, LeaseID: l.leaseID}
}

// Last returns the last token granted on resource.
func (s *Server) Last(resource string) guard.Token {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.rows[resource]; l != nil {
		return l.token
	}
	return guard.NoToken
}

// Holder says who has the lease; nil if nobody.
func (s *Server) Holder(resource string) *driver.HeldError {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.holder(resource, "")
}
