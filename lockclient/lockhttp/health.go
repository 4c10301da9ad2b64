package lockhttp

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/input"
)

// readyFor is how long a response of /readyz is reused, since everybody may ask.
const readyFor = time.Second

// readiness is what /readyz found last.
type readiness struct {
	mu      sync.Mutex
	at      time.Time // zero: not yet
	err     error
	leaseID string // of a lease whose release has not succeeded
}

// probeOwner is the owner of the leases of /readyz, the same for all servers.
const probeOwner = "readyz"

// readyz acquires a lease and releases it.
func (s *Server) readyz(w http.ResponseWriter, r *http.Request) {
	s.ready.mu.Lock() // one at a time; each is bounded
	if s.ready.at.IsZero() || time.Since(s.ready.at) > readyFor {
		// Not the context of a single request: the response is for all.
		s.ready.err = s.probe(context.WithoutCancel(r.Context()))
		s.ready.at = time.Now()
	}
	err := s.ready.err
	s.ready.mu.Unlock()
	if err != nil {
		k := &kindUnavailable
		if kindOf(err) == &kindBehind {
			k = &kindBehind
		}
		s.fail(w, r, &httpError{kind: k, err: err})
		return
	}
	s.respond(w, map[string]bool{"ok": true})
}

func (s *Server) probe(ctx context.Context) error {
	if !s.work.Begin() {
		return errClosing
	}
	defer s.work.End() // after the release
	// A lease that could not be released is acquired again. Under another ID it would
	// look like another server's.
	s.ready.leaseID = cmp.Or(s.ready.leaseID, input.NewLeaseID())
	q := driver.Request{
		Resource: s.opts.ReadyResource, LeaseID: s.ready.leaseID, Owner: probeOwner,
		TTL: probeTTL(s.limits), Timeout: s.opts.Timeout / 2,
	}
	_, err := within(ctx, s, "acquire", q.Claim(), func(ctx context.Context) (driver.Grant, error) {
		ctx, cancel := context.WithTimeout(ctx, s.opts.Timeout/2)
		defer cancel()
		return s.issuer.Acquire(ctx, q)
	}, nil)
	var held *driver.HeldError
	switch {
	case errors.As(err, &held) && (held.Owner == probeOwner || held.Remaining <= 0):
		return nil // another server's probe has just written there, or has freed it since
	case held != nil:
		return err // that proves only that the issuer can be read
	case errors.Is(err, driver.ErrLeaseIDSpent):
		err = nil // an earlier release was carried out, although its response was lost
	}
	_, released := within(ctx, s, "release", q.Claim(), func(ctx context.Context) (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, s.opts.Timeout/2)
		defer cancel()
		return s.issuer.Release(ctx, guard.Claim{Resource: q.Resource, LeaseID: q.LeaseID}) // even if no response to the acquire came
	}, nil)
	if released == nil {
		s.ready.leaseID = ""
	}
	return errors.Join(err, released)
}

// probeTTL is ten seconds, or the nearest TTL that the issuer allows.
func probeTTL(l driver.Limits) time.Duration {
	ttl := 10 * time.Second
	if l.MaxTTL > 0 {
		ttl = min(ttl, l.MaxTTL)
	}
	ttl = max(ttl, l.MinTTL)
	if l.TTLStep > 0 {
		if ttl -= ttl % l.TTLStep; ttl < l.MinTTL || ttl == 0 {
			ttl += l.TTLStep
		}
	}
	return ttl
}
