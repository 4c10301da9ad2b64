package lockhttp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
	at      time.Time
	err     error
	leaseID string // of a lease whose release has not succeeded
}

const (
	// readyResource is what all servers acquire and release for /readyz. No identity may
	// name it: while somebody holds it who is not a probe, no server is ready.
	readyResource = "fencepost-readyz"
	// probeOwner is the owner of these leases.
	probeOwner = "readyz"
)

// readyz signs a claim, if there is a signer, and acquires a lease and releases it, all within
// Options.ReadyWithin.
func (s *Server) readyz(w http.ResponseWriter, r *http.Request) {
	if s.closing() { // it refuses every acquire
		s.fail(w, r, "", errClosing)
		return
	}
	s.ready.mu.Lock() // one at a time; each is bounded
	if time.Since(s.ready.at) > readyFor {
		// Not the context of a single request: the response is for all.
		start := time.Now()
		s.ready.err = s.probe(context.WithoutCancel(r.Context()))
		s.ready.at = time.Now()
		if took := s.ready.at.Sub(start); s.ready.err == nil && took > s.opts.ReadyWithin {
			s.ready.err = fmt.Errorf("an acquire and its release took %s, and Options.ReadyWithin is %s", took.Round(time.Millisecond), s.opts.ReadyWithin)
		}
	}
	err := s.ready.err
	s.ready.mu.Unlock()
	if err != nil {
		k := kindOf(err)
		if k != &kindBehind && k != &kindSetup {
			k = &kindUnavailable
		}
		s.fail(w, r, "", &httpError{kind: k, err: err})
		return
	}
	s.respond(w, map[string]bool{"ok": true})
}

func (s *Server) probe(ctx context.Context) error {
	// A lease that could not be released is acquired again. Under another ID it would
	// look like another server's.
	s.ready.leaseID = cmp.Or(s.ready.leaseID, input.NewLeaseID())
	q := driver.Request{
		Resource: readyResource, LeaseID: s.ready.leaseID, Owner: probeOwner,
		TTL: probeTTL(s.limits), Timeout: s.opts.Timeout / 2,
	}
	released, err := within(ctx, s, "probe", q.Claim(), func(ctx context.Context) (bool, error) {
		half, cancel := context.WithTimeout(ctx, q.Timeout)
		defer cancel()
		claim := guard.Claim{Resource: q.Resource, Token: 1, LeaseID: q.LeaseID} // of no lease
		if _, err := s.sign(ctx, &Identity{Audience: probeOwner}, claim, time.Now().Add(q.TTL)); err != nil {
			return false, fmt.Errorf("signing: %w", err) // nothing could be granted
		}
		_, err := s.issuer.Acquire(half, q)
		var held *driver.HeldError
		switch {
		case errors.As(err, &held) && (held.Owner == probeOwner || held.Remaining <= 0):
			return false, nil // another server's probe has just written there, or has freed it since
		case held != nil:
			return false, err // that proves only that the issuer can be read
		case errors.Is(err, driver.ErrLeaseIDSpent):
			err = nil // an earlier release was carried out, although its response was lost
		}
		_, kept := s.issuer.Release(ctx, q.Claim()) // even if no response to the acquire came
		return kept == nil, errors.Join(err, kept)
	}, nil)
	if released {
		s.ready.leaseID = ""
	}
	return err
}

// probeTTL is ten seconds, or the nearest TTL below that the issuer allows.
func probeTTL(l driver.Limits) time.Duration {
	ttl := 10 * time.Second
	if l.MaxTTL > 0 {
		ttl = min(ttl, l.MaxTTL)
	}
	return max(l.MinTTL, l.TTLStep, ttl-ttl%max(l.TTLStep, time.Microsecond))
}
