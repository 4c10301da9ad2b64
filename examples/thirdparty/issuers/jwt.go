package main

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/lockhttp"
)

// verifier authenticates the lock server's requests by signed tokens of an identity provider:
// lockhttp.New(issuer, v.authenticate, nil). Identity.Limits can bound how often each may ask.
type verifier struct {
	keys             map[string]ed25519.PublicKey // the provider's, by the key ID in a token's header
	issuer, audience string                       // who made the token, and that it is for this server
	templates        []*guard.Template            // {tenant} is the token's tenant
}

// authenticate is a [lockhttp.Authenticate]. The algorithm is pinned, so that neither "none" nor a
// public key used as a shared secret gets through.
func (v *verifier) authenticate(r *http.Request) (*lockhttp.Identity, error) {
	values := r.Header.Values("Authorization")
	if len(values) != 1 {
		return nil, errors.New("want exactly one Authorization header")
	}
	scheme, text, _ := strings.Cut(values[0], " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return nil, errors.New("the Authorization header has no bearer token")
	}
	var c struct { // what the provider says about a caller
		jwt.RegisteredClaims
		Tenant   string `json:"tenant"`
		Operator bool   `json:"lock_operator"`
	}
	_, err := jwt.ParseWithClaims(text, &c, v.key,
		jwt.WithValidMethods([]string{jwt.SigningMethodEdDSA.Alg()}), jwt.WithIssuer(v.issuer), jwt.WithAudience(v.audience),
		jwt.WithExpirationRequired(), jwt.WithIssuedAt(), jwt.WithLeeway(5*time.Second))
	if err != nil {
		return nil, err
	}
	if c.Subject == "" || c.Tenant == "" {
		return nil, errors.New("the token names no subject or no tenant")
	}
	// Two tenants may each have a worker-1: they are named separately.
	subject, err := guard.JoinResource(c.Tenant, c.Subject)
	if err != nil {
		return nil, err
	}
	return &lockhttp.Identity{Subject: subject, Tenant: c.Tenant, Templates: v.templates, Operator: c.Operator}, nil
}

func (v *verifier) key(t *jwt.Token) (any, error) {
	kid, _ := t.Header["kid"].(string)
	key, known := v.keys[kid] // a map: kid never becomes part of a path
	if !known {
		return nil, fmt.Errorf("the key %q is unknown", kid)
	}
	return key, nil
}
