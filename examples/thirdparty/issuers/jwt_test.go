package main

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver/memory"
	"github.com/fencepost-go/fencepost/lockclient/lockhttp"
)

// TestTokens: a valid token leases in its tenant; every wrong one is answered
// with 401, and leaves no lease.
func TestTokens(t *testing.T) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, stranger, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	v := &verifier{
		keys: map[string]ed25519.PublicKey{"2026-11": public}, issuer: "https://id.example.com", audience: "locks",
		templates: []*guard.Template{guard.Must(guard.NewTemplate("{tenant}:billing-close:{period}"))},
	}
	server := memory.NewServer()
	handler, err := lockhttp.New(server.Issuer(), v.authenticate, nil)
	if err != nil {
		t.Fatal(err)
	}
	acquire := func(resource string, authorization ...string) int {
		r := httptest.NewRequest("POST", "/v1/locks/acquire", strings.NewReader(`{"resource":"`+resource+`","ttlSeconds":60}`))
		r.Header = http.Header{"Content-Type": {"application/json"}, "Authorization": authorization}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w.Code
	}
	said := func(change func(jwt.MapClaims)) jwt.MapClaims {
		c := jwt.MapClaims{
			"iss": "https://id.example.com", "aud": "locks", "sub": "worker-7", "tenant": "acme",
			"iat": time.Now().Unix(), "exp": time.Now().Add(time.Minute).Unix(),
		}
		if change != nil {
			change(c)
		}
		return c
	}
	sign := func(method jwt.SigningMethod, key any, kid any, c jwt.MapClaims) string {
		token := jwt.NewWithClaims(method, c)
		token.Header["kid"] = kid
		text, err := token.SignedString(key)
		if err != nil {
			t.Fatal(err)
		}
		return "Bearer " + text
	}
	good := func(c jwt.MapClaims) string { return sign(jwt.SigningMethodEdDSA, private, "2026-11", c) }
	for name, authorization := range map[string][]string{
		"none":                   nil,
		"two":                    {good(said(nil)), good(said(nil))},
		"not a bearer's":         {strings.Replace(good(said(nil)), "Bearer", "Basic", 1)},
		"another key":            {sign(jwt.SigningMethodEdDSA, stranger, "2026-11", said(nil))},
		"an unknown key":         {sign(jwt.SigningMethodEdDSA, private, "../2026-11", said(nil))},
		"a key ID of no text":    {sign(jwt.SigningMethodEdDSA, private, 7, said(nil))},
		"algorithm none":         {sign(jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, "2026-11", said(nil))},
		"the public key as HMAC": {sign(jwt.SigningMethodHS256, []byte(public), "2026-11", said(nil))},
		"expired":                {good(said(func(c jwt.MapClaims) { c["exp"] = time.Now().Add(-time.Minute).Unix() }))},
		"never expires":          {good(said(func(c jwt.MapClaims) { delete(c, "exp") }))},
		"not yet valid":          {good(said(func(c jwt.MapClaims) { c["nbf"] = time.Now().Add(time.Hour).Unix() }))},
		"another issuer's":       {good(said(func(c jwt.MapClaims) { c["iss"] = "https://evil.example.com" }))},
		"another service's":      {good(said(func(c jwt.MapClaims) { c["aud"] = "mail" }))},
		"no tenant":              {good(said(func(c jwt.MapClaims) { delete(c, "tenant") }))},
		"no subject":             {good(said(func(c jwt.MapClaims) { delete(c, "sub") }))},
		"spoiled":                {good(said(nil)) + "x"},
		"another tenant put in": {func() string {
			parts := strings.Split(good(said(nil)), ".")
			parts[1] = base64.RawURLEncoding.EncodeToString([]byte(`{"iss":"https://id.example.com","aud":"locks","sub":"a","tenant":"umbrella","exp":4102444800}`))
			return strings.Join(parts, ".")
		}()},
	} {
		if got := acquire("acme:billing-close:1", authorization...); got != http.StatusUnauthorized {
			t.Errorf("%s: %d", name, got)
		}
	}
	if server.Last("acme:billing-close:1") != guard.NoToken {
		t.Error("a lease was granted")
	}
	token := good(said(nil))
	for n, c := range []struct {
		resource string
		status   int
	}{{"umbrella:billing-close:1", 403}, {"acme:billing-close:1", 200}, {"acme:billing-close:2", 200}} {
		if got := acquire(c.resource, token); got != c.status {
			t.Errorf("%d: %s: %d, want %d", n, c.resource, got, c.status)
		}
	}
}
