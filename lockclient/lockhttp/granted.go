package lockhttp

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/input"
)

// grantedMost bounds the leases that a server remembers: some 20 MB. It asks the issuer
// for the others.
const grantedMost = 1 << 16

// granted are the leases that this server granted or renewed, by their IDs, for requests
// that name a lease only by its ID. An ID of a client's own may be that of several
// leases.
type granted struct {
	mu    sync.Mutex
	by    map[string]map[string]running // by lease ID and resource
	count int
	swept time.Time // when room looked for leases that are over
}

type running struct {
	token guard.Token
	ttl   time.Duration // of the grant; 0 if another server granted it and the ID does not say
	until time.Time
}

// add records a grant, or the new end of a lease that was extended, whose TTL is 0. A
// lease that another server granted is recorded when it is first renewed here, because
// looking for it costs the issuer more than a renewal does.
func (g *granted) add(claim guard.Claim, ttl time.Duration, until time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	old, known := g.by[claim.LeaseID][claim.Resource]
	switch {
	case known && ttl == 0:
		ttl = old.ttl
	case !known && !g.room():
		return
	case ttl == 0:
		ttl = ttlOf(claim.LeaseID)
	}
	if !known {
		g.count++
	}
	if g.by == nil {
		g.by = map[string]map[string]running{}
	}
	if g.by[claim.LeaseID] == nil {
		g.by[claim.LeaseID] = map[string]running{}
	}
	g.by[claim.LeaseID][claim.Resource] = running{claim.Token, ttl, until}
}

// room forgets the leases that are over if there are too many. It looks at all of them,
// so at most once a second: each grant and renewal waits for it.
func (g *granted) room() bool {
	if g.count < grantedMost {
		return true
	}
	now := time.Now()
	if now.Sub(g.swept) < time.Second {
		return false
	}
	g.swept = now
	for id, leases := range g.by {
		before := len(leases)
		maps.DeleteFunc(leases, func(_ string, r running) bool { return !r.until.After(now) })
		if g.count -= before - len(leases); len(leases) == 0 {
			delete(g.by, id)
		}
	}
	return g.count < grantedMost
}

// remove forgets a lease that is over; without a token, whichever has the claim's ID.
// Under another token it may run.
func (g *granted) remove(claim guard.Claim) {
	g.mu.Lock()
	defer g.mu.Unlock()
	old, known := g.by[claim.LeaseID][claim.Resource]
	if !known || claim.Token != guard.NoToken && claim.Token != old.token {
		return
	}
	g.count--
	if delete(g.by[claim.LeaseID], claim.Resource); len(g.by[claim.LeaseID]) == 0 {
		delete(g.by, claim.LeaseID)
	}
}

// claims returns the claims of the leases under an ID that may run.
func (g *granted) claims(leaseID string) (claims []guard.Claim) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	for resource, r := range g.by[leaseID] {
		if r.until.After(now) {
			claims = append(claims, guard.Claim{Resource: resource, Token: r.token, LeaseID: leaseID})
		}
	}
	return claims
}

// of returns what is known of a lease. Of one that this server did not grant, it is the
// TTL at most, which the lease ID may say.
func (g *granted) of(claim guard.Claim) running {
	g.mu.Lock()
	defer g.mu.Unlock()
	if r, known := g.by[claim.LeaseID][claim.Resource]; known {
		return r
	}
	return running{ttl: ttlOf(claim.LeaseID)}
}

// uuidLen is the length of input.NewLeaseID.
const uuidLen = 36

// newLeaseID makes a lease ID that ends with the TTL of the grant. So every server
// behind one name can renew a lease for it, whichever of them granted it.
func newLeaseID(ttl time.Duration) string {
	return input.NewLeaseID() + "_" + seconds(ttl).String()
}

// ttlOf returns the TTL that newLeaseID wrote; 0 for another ID.
func ttlOf(leaseID string) time.Duration {
	if len(leaseID) <= uuidLen || leaseID[uuidLen] != '_' {
		return 0
	}
	ttl, _ := parseSeconds(leaseID[uuidLen+1:])
	return ttl
}

// complete fills in the resource and the token of a claim that a request names by its
// lease ID; what the request has must be the lease's. A lease on a resource that the
// identity may not name gets the response of one that does not run.
func (s *Server) complete(ctx context.Context, id *Identity, claim guard.Claim) (guard.Claim, error) {
	if err := leaseID(claim.LeaseID); err != nil {
		return claim, err
	}
	if claim.Resource != "" {
		if err := allowed(id, claim.Resource); err != nil || claim.Token != guard.NoToken {
			return claim, err
		}
	}
	found, err := id.match(claim, s.granted.claims(claim.LeaseID))
	if err != nil || found.Token != guard.NoToken {
		return found, err
	}
	// What follows costs the issuer something, and anybody can make up a lease ID.
	if id.limited() {
		return claim, &httpError{kind: &kindTooMany}
	}
	claims, err := s.find(ctx, claim)
	if err == nil {
		found, err = id.match(claim, claims)
	}
	if err == nil && found.Token == guard.NoToken {
		err = &httpError{kind: &kindOver, leaseID: claim.LeaseID}
	}
	return found, err
}

// match returns the one claim that is as requested; without a token if there is none.
func (id *Identity) match(want guard.Claim, claims []guard.Claim) (found guard.Claim, err error) {
	for _, c := range claims {
		if want.Resource != "" && c.Resource != want.Resource || want.Token != guard.NoToken && c.Token != want.Token || !id.may(c.Resource) {
			continue
		}
		if found.Token != guard.NoToken {
			return want, guard.Invalid("resource", "", "is required: several leases have this ID")
		}
		found = c
	}
	return found, nil
}

// find asks the issuer which leases run under a claim's ID: on the claim's resource, or
// on any if the issuer is a driver.Finder.
func (s *Server) find(ctx context.Context, claim guard.Claim) ([]guard.Claim, error) {
	if claim.Resource != "" {
		held, err := s.held(ctx, claim.Resource)
		if err == driver.ErrNoWatch {
			return nil, guard.Invalid("fencingToken", "", "is required: this server did not grant the lease, and its issuer cannot say which token it has")
		}
		if err != nil || held == nil || held.LeaseID != claim.LeaseID {
			return nil, err
		}
		return []guard.Claim{{Resource: claim.Resource, Token: held.Token, LeaseID: held.LeaseID}}, nil
	}
	f, ok := s.issuer.(driver.Finder)
	if !ok {
		return nil, guard.Invalid("resource", "", "is required: this server does not know the lease as one that runs, and its issuer cannot find leases by ID")
	}
	// One at a time: an issuer without an index of lease IDs reads all leases.
	select {
	case s.finding <- struct{}{}:
		defer func() { <-s.finding }()
	case <-ctx.Done():
		return nil, guard.Unavailable("find", claim, context.Cause(ctx))
	case <-time.After(s.opts.Timeout):
		return nil, guard.Unavailable("find", claim, context.DeadlineExceeded)
	}
	claims, err := within(ctx, s, "find", claim, func(ctx context.Context) ([]guard.Claim, error) { return f.Find(ctx, claim.LeaseID) }, nil)
	return claims, readOnly(err)
}
