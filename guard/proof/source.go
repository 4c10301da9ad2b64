package proof

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"

	"github.com/fencepost-go/fencepost/guard"
)

// Source returns all public keys that are valid now, and why each other key that
// it found cannot be used; an error means that it does not know the keys. An
// empty list means that no key is valid. It must be safe for concurrent use. See
// [JWKS] and [Static].
type Source func(context.Context) (keys []PublicKey, unusable []error, err error)

// Static is a [Source] of keys that never change.
func Static(keys ...PublicKey) Source {
	keys = slices.Clone(keys)
	return func(context.Context) ([]PublicKey, []error, error) { return keys, nil, nil }
}

// maxKeys bounds how much is read of a response, in bytes.
const maxKeys = 1 << 20

// JWKS is a [Source] that fetches a JWKS (RFC 7517, section 5), such as [Keys]
// serves, and reads it key by key. It ignores keys of other kinds. client may be
// nil. Redirects are not followed, and the URL must be https, or http on
// a loopback address: whoever can change the response can issue tokens.
//
// Errors of the source: [guard.ErrUnavailable] if the server does not respond or
// responds with a status other than 200, [guard.ErrInvalid] for a bad URL or
// a response that is not a JWKS.
func JWKS(address string, client *http.Client) Source {
	if client == nil {
		client = http.DefaultClient
	}
	direct := *client
	direct.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return func(ctx context.Context) ([]PublicKey, []error, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
		if err != nil || r.URL.Host == "" || r.URL.Scheme != "https" && (r.URL.Scheme != "http" || !isLoopback(r.URL.Hostname())) {
			return nil, nil, guard.Invalid("JWKS URL", address, "must be https, or http on a loopback address")
		}
		unavailable := func(err error) ([]PublicKey, []error, error) {
			return nil, nil, guard.Unavailable("fetch keys", guard.Claim{}, err)
		}
		response, err := direct.Do(r)
		if err != nil {
			return unavailable(err)
		}
		defer func() { _ = response.Body.Close() }()
		if response.StatusCode != http.StatusOK {
			return unavailable(fmt.Errorf("%s responded with %s", address, response.Status))
		}
		b, err := io.ReadAll(io.LimitReader(response.Body, maxKeys))
		if err != nil {
			return unavailable(err)
		}
		return parseJWKS(b)
	}
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func parseJWKS(b []byte) (keys []PublicKey, unusable []error, err error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(b, &set); err != nil || set.Keys == nil {
		return nil, nil, guard.Invalid("JWKS", "", "is not a JSON object with keys")
	}
	for i, raw := range set.Keys {
		var kind struct{ Kty, Crv, Use any }
		if json.Unmarshal(raw, &kind) == nil && (kind.Kty != "OKP" || kind.Crv != "Ed25519" || kind.Use != nil && kind.Use != "sig") {
			continue // RFC 7517, section 5: ignore unknown keys
		}
		k, public, err := parseJWK(raw)
		if err == nil && k.D != "" {
			err = guard.Invalid("JWK", k.Kid, "is a private key; only the lock server may hold it")
		}
		if err != nil {
			unusable = append(unusable, fmt.Errorf("key %d of the JWKS: %w", i, err))
			continue
		}
		keys = append(keys, PublicKey{k.Kid, public})
	}
	return keys, unusable, nil
}
