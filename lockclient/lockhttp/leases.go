package lockhttp

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/input"
)

// grantedMost is how many leases of an identity a server remembers: some 5 MB. It asks the
// issuer for the others.
const grantedMost = 1 << 13

// granted are the leases that this server granted or renewed and that run, for requests
// that name a lease only by its ID. The zero value is ready.
type granted struct {
	mu sync.Mutex
	by map[string][]*running // by lease ID; one of a client's own may be that of several
	of map[string]int        // how many are an identity's, by its key
}

type running struct {
	identity, resource string // identity is a key
	token              guard.Token
	ttl                time.Duration // of the grant; 0 if another server granted it and the ID does not say
	until              time.Time
	end                *time.Timer // forgets it
}

// add records a grant, or the new end of a lease that was extended, whose TTL is 0. A
// lease that another server granted is recorded when it is first renewed here, because
// looking for it costs the issuer more than a renewal does.
func (g *granted) add(identity string, claim guard.Claim, ttl time.Duration, until time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := g.get(claim)
	if r != nil && r.token != claim.Token { // that one is over
		g.forget(claim.LeaseID, r)
		r = nil
	}
	if r == nil {
		if g.of[identity] >= grantedMost {
			return
		}
		if g.by == nil {
			g.by, g.of = map[string][]*running{}, map[string]int{}
		}
		r = &running{identity: identity, resource: claim.Resource, token: claim.Token, ttl: ttlOf(claim.LeaseID)}
		r.end = time.AfterFunc(time.Until(until), func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			if !r.until.After(time.Now()) { // else it was extended
				g.forget(claim.LeaseID, r)
			}
		})
		g.by[claim.LeaseID] = append(g.by[claim.LeaseID], r)
		g.of[identity]++
	}
	if r.until.After(until) { // no renewal shortens a lease
		until = r.until
	}
	r.until = until
	if ttl > 0 {
		r.ttl = ttl
	}
	r.end.Reset(time.Until(until))
}

// get returns what is known of the claim's lease, whatever its token; nil if nothing is.
func (g *granted) get(claim guard.Claim) *running {
	for _, r := range g.by[claim.LeaseID] {
		if r.resource == claim.Resource {
			return r
		}
	}
	return nil
}

// forget drops one lease, once.
func (g *granted) forget(leaseID string, r *running) {
	n := slices.Index(g.by[leaseID], r)
	if n < 0 {
		return
	}
	r.end.Stop()
	if g.by[leaseID] = slices.Delete(g.by[leaseID], n, n+1); len(g.by[leaseID]) == 0 {
		delete(g.by, leaseID)
	}
	if g.of[r.identity]--; g.of[r.identity] == 0 {
		delete(g.of, r.identity)
	}
}

// remove forgets a lease that is over; without a token, whichever has the claim's ID.
// Under another token it may run.
func (g *granted) remove(claim guard.Claim) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if r := g.get(claim); r != nil && (claim.Token == guard.NoToken || claim.Token == r.token) {
		g.forget(claim.LeaseID, r)
	}
}

// claims returns the claims of the leases under an ID.
func (g *granted) claims(leaseID string) (claims []guard.Claim) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, r := range g.by[leaseID] {
		claims = append(claims, guard.Claim{Resource: r.resource, Token: r.token, LeaseID: leaseID})
	}
	return claims
}

// token returns that of the lease under the claim's ID, if it runs as far as this server
// knows.
func (g *granted) token(claim guard.Claim) guard.Token {
	g.mu.Lock()
	defer g.mu.Unlock()
	if r := g.get(claim); r != nil {
		return r.token
	}
	return guard.NoToken
}

// others reports whether the claim's lease is known as another identity's.
func (g *granted) others(claim guard.Claim, identity string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := g.get(claim)
	return r != nil && r.token == claim.Token && r.identity != identity
}

// ttl returns the TTL that a lease was granted for; 0 if that is not known. Of one that
// this server did not grant, the lease ID may say it.
func (g *granted) ttl(claim guard.Claim) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	if r := g.get(claim); r != nil {
		return r.ttl
	}
	return ttlOf(claim.LeaseID)
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
	var ttl seconds
	if len(leaseID) > uuidLen && leaseID[uuidLen] == '_' {
		_ = ttl.UnmarshalJSON([]byte(leaseID[uuidLen+1:])) // else it is a client's
	}
	return time.Duration(ttl)
}

// complete fills in the resource and the token of a claim that a request names by its
// lease ID; what the request has must be the lease's. A lease on a resource that the
// identity may not name gets the response of one that does not run.
func (q *request) complete() (guard.Claim, error) {
	if q.claim.Resource != "" && q.claim.Token != guard.NoToken {
		return q.claim, nil
	}
	found, err := q.match(q.s.granted.claims(q.claim.LeaseID))
	if err != nil || found.Token != guard.NoToken {
		return found, err
	}
	// What follows costs the issuer something, and anybody can make up a lease ID.
	if q.id.limited() {
		return found, &httpError{kind: &kindTooMany}
	}
	claims, err := q.find()
	if err == nil {
		found, err = q.match(claims)
	}
	if err == nil && found.Token == guard.NoToken {
		err = &httpError{kind: &kindOver, leaseID: q.claim.LeaseID}
	}
	return found, err
}

// match returns the one claim that is as requested; without a token if there is none.
// Clients may choose the same lease ID: one that is known as another identity's must be
// named by its resource.
func (q *request) match(claims []guard.Claim) (found guard.Claim, err error) {
	want := q.claim
	for _, c := range claims {
		if want.Resource != "" && c.Resource != want.Resource || want.Token != guard.NoToken && c.Token != want.Token || !q.id.may(c.Resource) {
			continue
		}
		if want.Resource == "" && q.s.granted.others(c, q.id.key()) {
			continue
		}
		if found.Token != guard.NoToken {
			return want, guard.Invalid("resource", "", "is required: several leases have this ID")
		}
		found = c
	}
	return found, nil
}

// findsMost is how many look-ups of an identity may be in progress, since an issuer
// without an index of lease IDs reads all leases.
const findsMost = 4

// find asks the issuer which leases run under the claim's ID.
func (q *request) find() ([]guard.Claim, error) {
	s, claim := q.s, q.claim
	f, ok := s.issuer.(driver.Finder)
	if !ok {
		field := "resource" // a renewal needs both
		if claim.Resource != "" {
			field = "fencingToken"
		}
		return nil, guard.Invalid(field, "", "is required: this server does not know the lease as one that runs, and its issuer cannot find leases by ID")
	}
	done, ok := s.finds.begin(q.id.key(), findsMost)
	if !ok {
		return nil, &httpError{kind: &kindTooMany}
	}
	defer done()
	claims, err := within(q.Context(), s, "find", claim, func(ctx context.Context) ([]guard.Claim, error) { return f.Find(ctx, claim.LeaseID) }, nil)
	return claims, readOnly(err)
}
