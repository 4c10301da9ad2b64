// Package jwt authenticates the lock server's requests by signed tokens of an
// identity provider, with golang-jwt, and limits how often each identity asks,
// with golang.org/x/time/rate. It is a module of its own because of these two.
// To use a copy, call lockhttp.New(issuer, verifier.Authenticate, ...).
package jwt

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"golang.org/x/time/rate"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/lockhttp"
)

// Verifier accepts bearer tokens of one identity provider. Its fields must be
// set before use and not changed afterwards.
type Verifier struct {
	// Keys are the provider's public keys by the key ID in a token's header.
	Keys map[string]ed25519.PublicKey
	// Issuer and Audience must match those of a token: who made it, and that it
	// is for this server and no other service.
	Issuer, Audience string
	// Templates name the resources; {tenant} is the token's tenant.
	Templates []*guard.Template
	// Rate is how many acquires an identity may send per second, and Burst how
	// many at once; a Rate of 0 means no limit.
	Rate  rate.Limit
	Burst int

	mu       sync.Mutex
	limiters map[string]*limiter
}

type limiter struct {
	*rate.Limiter
	used time.Time
}

// claims are what the provider says about a caller.
type claims struct {
	jwt.RegisteredClaims
	Tenant   string `json:"tenant"`
	Operator bool   `json:"lock_operator"`
}

// Authenticate is a [lockhttp.Authenticate]. The algorithm is pinned: the
// token's header must name EdDSA, so that neither "none" nor a public key used
// as a shared secret gets through.
func (v *Verifier) Authenticate(r *http.Request) (*lockhttp.Identity, error) {
	values := r.Header.Values("Authorization")
	if len(values) != 1 {
		return nil, errors.New("want exactly one Authorization header")
	}
	scheme, text, _ := strings.Cut(values[0], " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return nil, errors.New("the Authorization header has no bearer token")
	}
	var c claims
	_, err := jwt.ParseWithClaims(text, &c, v.key,
		jwt.WithValidMethods([]string{jwt.SigningMethodEdDSA.Alg()}), jwt.WithIssuer(v.Issuer), jwt.WithAudience(v.Audience),
		jwt.WithExpirationRequired(), jwt.WithIssuedAt(), jwt.WithLeeway(5*time.Second))
	if err != nil {
		return nil, err
	}
	if c.Subject == "" || c.Tenant == "" {
		return nil, errors.New("the token names no subject or no tenant")
	}
	// Two tenants may each have a worker-1: they are counted and named
	// separately.
	subject, err := guard.JoinResource(c.Tenant, c.Subject)
	if err != nil {
		return nil, err
	}
	id := &lockhttp.Identity{Subject: subject, Tenant: c.Tenant, Templates: v.Templates, Operator: c.Operator}
	if v.Rate > 0 {
		id.Limits.Acquire = v.limiter(subject).Allow
	}
	return id, nil
}

func (v *Verifier) key(t *jwt.Token) (any, error) {
	kid, _ := t.Header["kid"].(string)
	key, known := v.Keys[kid] // a map: kid never becomes part of a path
	if !known {
		return nil, fmt.Errorf("the key %q is unknown", kid)
	}
	return key, nil
}

// limiterFor is how long an unused limiter is kept, and limitersMost how many
// start a clean-up. Only authenticated callers have one.
const (
	limiterFor   = 10 * time.Minute
	limitersMost = 10_000
)

func (v *Verifier) limiter(subject string) *rate.Limiter {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := time.Now()
	l := v.limiters[subject]
	if l == nil {
		if v.limiters == nil {
			v.limiters = map[string]*limiter{}
		}
		if len(v.limiters) >= limitersMost {
			for name, old := range v.limiters {
				if now.Sub(old.used) > limiterFor {
					delete(v.limiters, name)
				}
			}
		}
		l = &limiter{Limiter: rate.NewLimiter(v.Rate, v.Burst)}
		v.limiters[subject] = l
	}
	l.used = now
	return l.Limiter
}
