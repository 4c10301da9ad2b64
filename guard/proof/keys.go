package proof

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

const (
	// Refresh is how old the keys may be before the next use asks the source
	// again: a key that was removed is refused from then on.
	Refresh = time.Minute
	// MaxAge is how long keys that the source could not confirm are used; after
	// that nothing is verified ([guard.ErrUnavailable]).
	MaxAge = time.Hour

	// pause is the minimum time between two requests to a source. An unknown key
	// ID asks it before Refresh is over.
	pause = Refresh / 10
	// fetchTimeout bounds one request to a source.
	fetchTimeout = 5 * time.Second
)

// Keys is a set of public keys that follows its source. As an [http.Handler] it
// serves the set as a JWKS (RFC 7517, section 5). Make one with [NewKeys]; the
// zero value is not usable. It is safe for concurrent use and runs nothing in
// the background: the request that finds the keys too old asks the source, for
// at most five seconds, while others continue with the previous keys.
//
// A source that fails is logged ([KeysOptions.Logger]), and so is each key that
// cannot be used, once.
type Keys struct {
	source   Source
	logger   *slog.Logger // nil is slog's default
	set      atomic.Pointer[keySet]
	checked  atomic.Int64  // when the source confirmed set, in seconds since 1970
	asked    atomic.Int64  // when the source was asked last
	asking   chan struct{} // holds one element while the source is being asked
	unusable string        // what was logged
}

// keySet is one generation of keys, by their IDs. It never changes.
type keySet map[string]ed25519.PublicKey

// KeysOptions configures [NewKeys]. The zero value is the default.
type KeysOptions struct {
	// Logger gets a line for each failure of the source, and for keys that cannot be
	// used. nil means [slog.Default] at that moment.
	Logger *slog.Logger
}

// NewKeys asks the source for its keys. opts may be nil. Errors are those of the source,
// and a *guard.InvalidError if it is nil.
func NewKeys(ctx context.Context, source Source, opts *KeysOptions) (*Keys, error) {
	if source == nil {
		return nil, guard.Invalid("source", "", "must not be nil")
	}
	k := &Keys{source: source, asking: make(chan struct{}, 1)}
	if opts != nil {
		k.logger = opts.Logger
	}
	if err := k.load(ctx); err != nil {
		return nil, err
	}
	return k, nil
}

// load asks the source. There is only one caller at a time.
func (k *Keys) load(ctx context.Context) error {
	now := time.Now().Unix()
	k.asked.Store(now)
	limited, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	list, err := k.source(limited)
	if err != nil {
		return err
	}
	var unusable []error
	next := make(keySet, len(list))
	for _, key := range list {
		switch first, twice := next[key.id]; {
		case key.err != nil:
			unusable = append(unusable, key.err)
		case len(key.key) == 0 || twice && !first.Equal(key.key):
			unusable = append(unusable, guard.Invalid("key", key.id, "is the zero value, or another key with this ID comes first"))
		default:
			next[key.id] = key.key
		}
	}
	if text := fmt.Sprint(errors.Join(unusable...)); text != k.unusable {
		if k.unusable = text; len(unusable) > 0 {
			cmp.Or(k.logger, slog.Default()).LogAttrs(ctx, slog.LevelError, "proof_keys_unusable", slog.String("error", text))
		}
	}
	k.set.Store(&next)
	k.checked.Store(now) // when it was asked, not when it responded
	return nil
}

// confirmed reports whether the source confirmed the keys less than limit before
// now. A clock that was set back makes keys too old, not too young.
func (k *Keys) confirmed(now int64, limit time.Duration) bool {
	age := now - k.checked.Load()
	return age >= 0 && age < int64(limit/time.Second)
}

// current returns the keys that may be used now, in seconds since 1970. It asks
// the source if they are too old or if one is lacking, unless that was done
// a short while ago. It waits for another caller's request only if the keys must
// not be used without it.
func (k *Keys) current(ctx context.Context, now int64, lacking bool) (*keySet, error) {
	if !lacking && k.confirmed(now, Refresh) {
		return k.set.Load(), nil
	}
	select {
	case k.asking <- struct{}{}:
	default:
		if k.confirmed(now, MaxAge) {
			return k.set.Load(), nil
		}
		select {
		case k.asking <- struct{}{}:
			now = time.Now().Unix() // another request may have asked since
		case <-ctx.Done():
			return nil, guard.Unavailable("verify proof", guard.Claim{}, context.Cause(ctx))
		}
	}
	defer func() { <-k.asking }()
	var err error
	if since := now - k.asked.Load(); since < 0 || since >= int64(pause/time.Second) {
		// The request that asks on behalf of all must not end it.
		if err = k.load(context.WithoutCancel(ctx)); err != nil {
			cmp.Or(k.logger, slog.Default()).LogAttrs(ctx, slog.LevelError, "proof_keys_unavailable", slog.String("error", err.Error()))
		}
	}
	now = max(now, k.checked.Load()) // it may just have been confirmed
	if !k.confirmed(now, MaxAge) {
		return nil, guard.Unavailable("verify proof", guard.Claim{}, cmp.Or(err, errors.New("the source of the keys has not confirmed them for longer than MaxAge")))
	}
	return k.set.Load(), nil
}

// ServeHTTP serves the set as a JWKS.
func (k *Keys) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	set, err := k.current(r.Context(), time.Now().Unix(), false)
	if err != nil {
		http.Error(w, http.StatusText(http.StatusServiceUnavailable), http.StatusServiceUnavailable)
		return
	}
	list := []jwk{}
	for _, id := range slices.Sorted(maps.Keys(*set)) {
		list = append(list, jwkOf(PublicKey{id: id, key: (*set)[id]}))
	}
	w.Header().Set("Content-Type", "application/jwk-set+json")
	w.Header().Set("Cache-Control", "public, max-age=6")        // pause
	_ = json.NewEncoder(w).Encode(map[string]any{"keys": list}) // if this fails the client is gone
}

// Source returns all public keys that are valid now; an error means that it does
// not know the keys. An empty list means that no key is valid. It must be safe for
// concurrent use. See [JWKS] and [Static].
type Source func(context.Context) ([]PublicKey, error)

// Static is a [Source] of keys that never change.
func Static(keys ...PublicKey) Source {
	keys = slices.Clone(keys)
	return func(context.Context) ([]PublicKey, error) { return keys, nil }
}

// maxKeys bounds how much is read of a response, in bytes.
const maxKeys = 1 << 20

// JWKS is a [Source] that fetches a JWKS (RFC 7517, section 5), such as [Keys]
// serves, and reads it key by key. It ignores keys of other kinds. client may be
// nil. Redirects are not followed, and the URL must be https, or http on
// a loopback address: whoever can change the response can issue tokens.
//
// Errors of the source:
//   - [guard.ErrUnavailable]: the server does not respond, or with a status other than 200.
//   - [guard.ErrInvalid]: the URL is bad, or the response is not a JWKS.
func JWKS(address string, client *http.Client) Source {
	direct := *cmp.Or(client, http.DefaultClient)
	direct.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return func(ctx context.Context) ([]PublicKey, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
		if err != nil || r.URL.Host == "" || r.URL.Scheme != "https" && (r.URL.Scheme != "http" || !isLoopback(r.URL.Hostname())) {
			return nil, guard.Invalid("JWKS URL", address, "must be https, or http on a loopback address")
		}
		var b []byte
		response, err := direct.Do(r)
		if err == nil {
			defer func() { _ = response.Body.Close() }()
			b, err = io.ReadAll(io.LimitReader(response.Body, maxKeys))
			if response.StatusCode != http.StatusOK {
				err = fmt.Errorf("%s responded with %s", address, response.Status)
			}
		}
		if err != nil {
			return nil, guard.Unavailable("fetch keys", guard.Claim{}, err)
		}
		return parseJWKS(b)
	}
}

func isLoopback(host string) bool {
	return host == "localhost" || net.ParseIP(host).IsLoopback() // which is false for no IP
}

func parseJWKS(b []byte) (keys []PublicKey, err error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(b, &set); err != nil || set.Keys == nil {
		return nil, guard.Invalid("JWKS", "", "is not a JSON object with keys")
	}
	for i, raw := range set.Keys {
		k, public, err := parseJWK(raw)
		switch {
		case k.Kty != "" && (k.Kty != "OKP" || k.Crv != "Ed25519" || k.Use != "" && k.Use != "sig"):
			continue // RFC 7517, section 5: ignore unknown keys
		case err == nil && k.D != "":
			err = guard.Invalid("JWK", k.Kid, "is a private key; only the lock server may hold it")
		}
		if err != nil {
			err = fmt.Errorf("key %d of the JWKS: %w", i, err)
		}
		keys = append(keys, PublicKey{k.Kid, public, err})
	}
	return keys, nil
}
