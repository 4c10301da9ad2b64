package proof

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"

	"github.com/fencepost-go/fencepost/guard"
)

// Source returns all public keys that are valid now, and why each other key that
// it found cannot be used; an error means that it does not know the keys. It must
// be safe for concurrent use. An empty list is an answer: no key is valid. See
// [JWKS] and [Static].
type Source func(context.Context) (keys []PublicKey, unusable []error, err error)

// Static is a [Source] of keys that never change.
func Static(keys ...PublicKey) Source {
	keys = append([]PublicKey(nil), keys...)
	return func(context.Context) ([]PublicKey, []error, error) { return keys, nil, nil }
}

// maxKeys bounds how much is read of an answer, in bytes.
const maxKeys = 1 << 20

// JWKS is a [Source] that fetches a JWKS (RFC 7517, section 5), such as [Keys]
// serves, key by key. It ignores keys of other kinds. client may be nil. Redirects are not
// followed, and the URL must be https, or http on a loopback address: whoever
// can change the answer can issue tokens.
//
// Errors of the source: [guard.ErrUnavailable] if the server gives no answer or
// a status other than 200, [guard.ErrInvalid] for a bad URL or an answer that is
// not a JWKS.
func JWKS(address string, client *http.Client) Source {
	if client == nil {
		client = http.DefaultClient
	}
	direct := *client
	direct.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return func(ctx context.Context) ([]PublicKey, []error, error) {
		if u, err := url.Parse(address); err != nil || u.Host == "" || u.Scheme != "https" && (u.Scheme != "http" || !isLoopback(u.Hostname())) {
			return nil, nil, guard.Invalid("JWKS URL", address, "must be https, or http on a loopback address")
		}
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
		if err != nil {
			return nil, nil, guard.Invalid("JWKS URL", address, "is not a URL")
		}
		answer, err := direct.Do(r)
		if err != nil {
			return nil, nil, guard.Unavailable("fetch keys", guard.Claim{}, err)
		}
		defer func() { _ = answer.Body.Close() }()
		if answer.StatusCode != http.StatusOK {
			return nil, nil, guard.Unavailable("fetch keys", guard.Claim{}, fmt.Errorf("%s answered %s", address, answer.Status))
		}
		b, err := io.ReadAll(io.LimitReader(answer.Body, maxKeys))
		if err != nil {
			return nil, nil, guard.Unavailable("fetch keys", guard.Claim{}, err)
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
		var kind struct{ Kty, Crv, Use, Alg any }
		err := json.Unmarshal(raw, &kind)
		if err == nil && (kind.Kty != "OKP" || kind.Crv != "Ed25519" || kind.Use != nil && kind.Use != "sig") {
			continue // RFC 7517, section 5: ignore unknown keys
		}
		var key PublicKey
		if err = key.UnmarshalJSON(raw); err != nil {
			unusable = append(unusable, fmt.Errorf("key %d of the JWKS: %w", i, err))
			continue
		}
		keys = append(keys, key)
	}
	return keys, unusable, nil
}
