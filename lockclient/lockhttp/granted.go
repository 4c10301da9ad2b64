package lockhttp

import (
	"context"
	"sync"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/input"
)

const (
	// grantedMost bounds the leases that a server remembers: some 40 MB, twice that with
	// the longest names. It asks the issuer for the others.
	grantedMost = 1 << 16
	// grantedShare is how many of them a subject has at most, so that one does not
	// displace the others'.
	grantedShare = grantedMost / 8
)

// granted are the leases that this server granted or renewed, by their IDs, for requests
// that name a lease only by its ID. An ID of a client's own may be that of several
// leases.
type granted struct {
	mu    sync.Mutex
	by    map[string]map[string]running // by lease ID and resource
	count int
	of    map[string]int // how many are a subject's
	swept time.Time      // when room looked for leases that are over
}

type running struct {
	subject string
	token   guard.Token
	ttl     time.Duration // of the grant; 0 if another server granted it and the ID does not say
	until   time.Time
}

// add records a grant, or the new end of a lease that was extended, whose TTL is 0. A
// lease that another server granted is recorded when it is first renewed here, because
// looking for it costs the issuer more than a renewal does.
func (g *granted) add(subject string, claim guard.Claim, ttl time.Duration, until time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	old, known := g.by[claim.LeaseID][claim.Resource]
	switch {
	case known && ttl == 0:
		ttl = old.ttl
	case !known && !g.room(subject):
		return
	case ttl == 0:
		ttl = ttlOf(claim.LeaseID)
	}
	if g.by == nil {
		g.by, g.of = map[string]map[string]running{}, map[string]int{}
	}
	if known {
		subject = old.subject
	} else {
		g.count++
		g.of[subject]++
	}
	if g.by[claim.LeaseID] == nil {
		g.by[claim.LeaseID] = map[string]running{}
	}
	g.by[claim.LeaseID][claim.Resource] = running{subject, claim.Token, ttl, until}
}

// room forgets the leases that are over if there are too many. It looks at all of them,
// so at most once a second: each grant and renewal waits for it.
func (g *granted) room(subject string) bool {
	free := func() bool { return g.count < grantedMost && g.of[subject] < grantedShare }
	if free() {
		return true
	}
	now := time.Now()
	if now.Sub(g.swept) < time.Second {
		return false
	}
	g.swept = now
	for id, leases := range g.by {
		for resource, r := range leases {
			if !r.until.After(now) {
				g.forget(id, resource)
			}
		}
	}
	return free()
}

// forget drops one lease.
func (g *granted) forget(leaseID, resource string) {
	subject := g.by[leaseID][resource].subject
	g.count--
	if g.of[subject]--; g.of[subject] == 0 {
		delete(g.of, subject)
	}
	if delete(g.by[leaseID], resource); len(g.by[leaseID]) == 0 {
		delete(g.by, leaseID)
	}
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
	g.forget(claim.LeaseID, claim.Resource)
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

// lease returns what is known of a lease. Of one that this server did not grant, it is the
// TTL at most, which the lease ID may say.
func (g *granted) lease(claim guard.Claim) running {
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
	claims, err := s.find(ctx, id, claim)
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
func (s *Server) find(ctx context.Context, id *Identity, claim guard.Claim) ([]guard.Claim, error) {
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
	// One at a time, since an issuer without an index of lease IDs reads all leases; and
	// one of each subject waits for that, so that none keeps the others waiting.
	own, leave := s.finders.join(id.Subject)
	defer leave()
	timeout := time.After(s.opts.Timeout)
	for _, room := range []chan struct{}{own, s.finding} {
		select {
		case room <- struct{}{}:
			defer func() { <-room }()
		case <-ctx.Done():
			return nil, guard.Unavailable("find", claim, context.Cause(ctx))
		case <-timeout:
			return nil, guard.Unavailable("find", claim, context.DeadlineExceeded)
		}
	}
	claims, err := within(ctx, s, "find", claim, func(ctx context.Context) ([]guard.Claim, error) { return f.Find(ctx, claim.LeaseID) }, nil)
	return claims, readOnly(err)
}

// finders are the requests that look for a lease by its ID, by subject. The zero value is
// ready.
type finders struct {
	mu sync.Mutex
	by map[string]*finder
}

type finder struct {
	room  chan struct{} // for one
	users int
}

// join returns what has room for one request of the subject, until leave.
func (f *finders) join(subject string) (room chan struct{}, leave func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	own := f.by[subject]
	if own == nil {
		own = &finder{room: make(chan struct{}, 1)}
		if f.by == nil {
			f.by = map[string]*finder{}
		}
		f.by[subject] = own
	}
	own.users++
	return own.room, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if own.users--; own.users == 0 {
			delete(f.by, subject)
		}
	}
}
