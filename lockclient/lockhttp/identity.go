package lockhttp

import (
	"cmp"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// Identity is who asks and what it may do. The zero value may do nothing.
type Identity struct {
	// Subject names the identity, 1 to 128 bytes without control characters.
	// Leases and waits are counted by it, and the log has it. Required.
	Subject string
	// Tenant is the value that the variable {tenant} of a template must have.
	// If empty, no template with that variable matches.
	Tenant string
	// Templates define the resources that it may name. It sees nothing else.
	Templates []*guard.Template
	// AllResources allows every resource, for operators of the whole server.
	AllResources bool
	// Owner is the ownerId of its leases; another one is refused. If empty, the
	// request chooses it, and then it is text for people that proves nothing.
	Owner string
	// SeeHolders lets it see the tokens and lease IDs of other holders, with
	// which it could renew and release their leases: for processes that trust
	// each other, as those of one application do.
	SeeHolders bool
	// Operator may force-unlock, read the audit and see what SeeHolders shows.
	Operator bool
	// Audience is for whom the proofs of its claims are made, such as a service
	// and its tenant: another audience refuses them. Required with
	// Options.Signer; without it nothing can be signed and so nothing granted.
	Audience string
	// Limits bound what it may request.
	Limits Limits
}

// Limits bound one identity. A zero field is the default.
type Limits struct {
	// Acquire is called before every acquire, before a release without a token of what
	// is not a running lease, and before a request that names a lease only by an ID
	// that this server does not know, and reports whether it may go on;
	// nil means always. The Allow method of a rate.Limiter of golang.org/x/time
	// is one.
	Acquire func() bool
	// Leases is how many it may hold at a time, as far as this server knows: it
	// counts what it has granted itself since it started. 0 means no limit.
	Leases int
	// Waiting is how many of its requests may wait for a lease or follow one at
	// a time; 0 means 1,000.
	Waiting int
	// MinTTL and MaxTTL bound its TTLs; 0 means 100 ms and 24 hours. The
	// issuer's limits bound them further.
	MinTTL, MaxTTL time.Duration
	// Body is the longest body of a request in bytes; 0 means 256 KiB.
	Body int64
}

const (
	defaultWaiting = 1000
	defaultMinTTL  = 100 * time.Millisecond
	defaultMaxTTL  = 24 * time.Hour
	defaultBody    = 256 << 10
)

// tenantVariable is bound to Identity.Tenant.
const tenantVariable = "tenant"

// may reports whether the identity may name the resource.
func (id *Identity) may(resource string) bool {
	if id.AllResources {
		return true
	}
	for _, t := range id.Templates {
		if id.matches(t, resource) {
			return true
		}
	}
	return false
}

func (id *Identity) matches(t *guard.Template, resource string) bool {
	values, err := t.Match(resource)
	if err != nil {
		return false
	}
	next := 0
	for _, part := range t.Parts() {
		if part.Variable == "" {
			continue
		}
		if part.Variable == tenantVariable && (id.Tenant == "" || values[next] != id.Tenant) {
			return false
		}
		next++
	}
	return true
}

func (id *Identity) sees() bool { return id.SeeHolders || id.Operator }

// patterns returns what lists the identity's resources under a prefix, as patterns of
// package lockadmin. They include nothing of another tenant, so that neither a page nor
// its end can reveal one. prefix has whole components; empty means all.
func (id *Identity) patterns(prefix string) (patterns []string) {
	prefix = strings.ReplaceAll(prefix, "*", "%2A")
	if id.AllResources {
		return []string{prefix}
	}
	var asked []string
	if prefix != "" {
		asked = strings.Split(prefix, ":")
	}
	for _, t := range id.Templates {
		if p, ok := id.pattern(t, asked); ok {
			patterns = append(patterns, p)
		}
	}
	return patterns
}

// pattern returns the template with the tenant and the requested components
// filled in; false if no name has both.
func (id *Identity) pattern(t *guard.Template, asked []string) (string, bool) {
	parts := t.Parts()
	if len(asked) > len(parts) {
		return "", false
	}
	components := make([]string, len(parts))
	for i, part := range parts {
		switch {
		case part.Variable == tenantVariable:
			tenant, err := guard.JoinResource(id.Tenant)
			if err != nil {
				return "", false
			}
			components[i] = strings.ReplaceAll(tenant, "*", "%2A")
		case part.Variable != "":
			components[i] = "*"
		default:
			components[i] = strings.ReplaceAll(part.Literal, "*", "%2A")
		}
		if i >= len(asked) {
			continue
		}
		if components[i] != "*" && components[i] != asked[i] {
			return "", false
		}
		components[i] = asked[i]
	}
	return strings.Join(components, ":"), true
}

// usage counts what identities hold and wait for, as far as this server knows.
type usage struct {
	mu      sync.Mutex
	waiting map[string]int
	leases  map[string]map[guard.Claim]counted // by subject and by the claim without its token
}

// counted is a lease that an identity may hold.
type counted struct {
	token guard.Token // NoToken until it is granted
	until time.Time   // the lease's end; zero until it is granted
	asked time.Time   // when a request without a response yet can no longer be granted; zero if there is none
}

func (c counted) over(now time.Time) bool { return !c.until.After(now) && !c.asked.After(now) }

// wait counts a request that waits; false if there are too many.
func (u *usage) wait(id *Identity) (done func(), ok bool) {
	most := id.Limits.Waiting
	if most == 0 {
		most = defaultWaiting
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.waiting[id.Subject] >= most {
		return nil, false
	}
	if u.waiting == nil {
		u.waiting = map[string]int{}
	}
	u.waiting[id.Subject]++
	return func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		if u.waiting[id.Subject]--; u.waiting[id.Subject] == 0 {
			delete(u.waiting, id.Subject)
		}
	}, true
}

// hold counts a lease that is about to be requested, named by a claim without a
// token. It returns false, and counts nothing, if that would be one too many.
// undo removes what this call added, unless the lease has been granted since.
func (u *usage) hold(id *Identity, lease guard.Claim, until time.Time) (undo func(), ok bool) {
	if id.Limits.Leases <= 0 {
		return func() {}, true
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	held := u.leases[id.Subject]
	_, again := held[lease]
	if !again && len(held) >= id.Limits.Leases {
		now := time.Now()
		maps.DeleteFunc(held, func(_ guard.Claim, c counted) bool { return c.over(now) })
		if len(held) >= id.Limits.Leases {
			return nil, false
		}
	}
	u.change(id, lease, func(c *counted) {
		if until.After(c.asked) {
			c.asked = until
		}
	})
	return func() {
		if !again {
			u.over(id, lease)
		}
	}, true
}

// runs counts a lease that was granted or extended.
func (u *usage) runs(id *Identity, claim guard.Claim, until time.Time) {
	if id.Limits.Leases > 0 {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.change(id, claim, func(c *counted) {
			c.token, c.asked = cmp.Or(claim.Token, c.token), time.Time{}
			if until.After(c.until) {
				c.until = until
			}
		})
	}
}

// has reports whether a lease is counted.
func (u *usage) has(id *Identity, claim guard.Claim) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	_, ok := u.leases[id.Subject][tokenless(claim)]
	return ok
}

func (u *usage) change(id *Identity, claim guard.Claim, change func(*counted)) {
	held := u.leases[id.Subject]
	if held == nil {
		held = map[guard.Claim]counted{}
		if u.leases == nil {
			u.leases = map[string]map[guard.Claim]counted{}
		}
		u.leases[id.Subject] = held
	}
	lease := tokenless(claim)
	one := held[lease]
	change(&one)
	held[lease] = one
}

// over stops counting the lease of a claim. Under another token it may run.
func (u *usage) over(id *Identity, claim guard.Claim) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.leases[id.Subject][tokenless(claim)].token == claim.Token {
		u.drop(id, claim)
	}
}

// free stops counting a lease that was released, or whose ID is spent.
func (u *usage) free(id *Identity, claim guard.Claim) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.drop(id, claim)
}

func (u *usage) drop(id *Identity, claim guard.Claim) {
	delete(u.leases[id.Subject], tokenless(claim))
	if len(u.leases[id.Subject]) == 0 {
		delete(u.leases, id.Subject)
	}
}

// tokenless is the claim without its token.
func tokenless(claim guard.Claim) guard.Claim {
	claim.Token = guard.NoToken
	return claim
}
