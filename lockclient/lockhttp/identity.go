package lockhttp

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// Identity is who asks and what it may do. The zero value may do nothing.
type Identity struct {
	// Subject names the identity within its Tenant, 1 to 128 bytes without control
	// characters. The log has it. What Limits bound is counted by both: one subject in
	// two tenants is two identities. Required.
	Subject string
	// Tenant is the value that the variable {tenant} of a template must have.
	// If empty, no template with that variable matches. With Subject it is also what
	// requests and leases are counted by.
	Tenant string
	// Templates define the resources that it may name. It sees nothing else.
	Templates []*guard.Template
	// AllResources allows every resource, and with Operator what concerns the whole
	// issuer: its floor, its epoch, a purge.
	AllResources bool
	// Owner is the ownerId of its leases; another one is refused. If empty, the
	// request chooses it, and then it is text for people that proves nothing.
	Owner string
	// Operator may force-unlock, advance, read the audit and see the tokens and lease IDs of other
	// holders, with which it could renew and release their leases.
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
	// Acquire is called before every acquire, and before a release without a token of a
	// lease that does not run. It reports whether the request may go on; nil means always. The Allow
	// method of a rate.Limiter of golang.org/x/time is one.
	Acquire func() bool
	// Waiting is how many of its requests may wait for a lease, which includes every
	// acquire with waitSeconds, or follow one at a time; 0 means 1,000.
	Waiting int
	// Resources is how many resources its tenant may lease, those included that are free and
	// that the issuer has not purged; 0 means no limit. Each server counts what Options.Admin
	// lists, or, without it, what it was asked for.
	Resources int
	// MinTTL and MaxTTL bound its TTLs; 0 means 100 ms and 24 hours. The
	// issuer's limits bound them further.
	MinTTL, MaxTTL time.Duration
}

const (
	defaultWaiting = 1000
	defaultMinTTL  = 100 * time.Millisecond
	defaultMaxTTL  = 24 * time.Hour
)

// tenantVariable is bound to Identity.Tenant.
const tenantVariable = "tenant"

// may reports whether the identity may name the resource.
func (id *Identity) may(resource string) bool {
	fits := func(t *guard.Template) bool { return id.matches(t, resource) }
	return resource != readyResource && (id.AllResources || slices.ContainsFunc(id.Templates, fits))
}

func (id *Identity) matches(t *guard.Template, resource string) bool {
	values, err := t.Match(resource)
	tenant := slices.Index(t.Variables(), tenantVariable)
	return err == nil && (tenant < 0 || id.Tenant != "" && values[tenant] == id.Tenant)
}

// key tells identities apart where they are counted. A subject has no control character.
func (id *Identity) key() string { return id.Tenant + "\n" + id.Subject }

// limited reports whether an acquire, or what counts as one, is one too many.
func (id *Identity) limited() bool { return id.Limits.Acquire != nil && !id.Limits.Acquire() }

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
	var components []string
	for n, part := range t.Parts() {
		component := strings.ReplaceAll(part.Literal, "*", "%2A")
		switch part.Variable {
		case "":
		case tenantVariable:
			tenant, err := guard.JoinResource(id.Tenant)
			if err != nil {
				return "", false
			}
			component = strings.ReplaceAll(tenant, "*", "%2A")
		default:
			component = "*"
		}
		if n < len(asked) {
			if component != "*" && component != asked[n] {
				return "", false
			}
			component = asked[n]
		}
		components = append(components, component)
	}
	return strings.Join(components, ":"), len(asked) <= len(components)
}

// counts are how many requests of each identity do something. The zero value is ready.
type counts struct {
	mu sync.Mutex
	by map[string]int // by Identity.key
}

// begin counts a request until done; false if the identity has the most already.
func (c *counts) begin(key string, most int) (done func(), ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.by[key] >= most {
		return nil, false
	}
	if c.by == nil {
		c.by = map[string]int{}
	}
	c.by[key]++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.by[key]--; c.by[key] == 0 {
			delete(c.by, key)
		}
	}, true
}

// full reports whether the identity has the most.
func (c *counts) full(key string, most int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.by[key] >= most
}
