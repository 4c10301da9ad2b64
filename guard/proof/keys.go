package proof

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
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
)

const (
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
// A source that fails is logged with [slog.Default], and so is each key that
// cannot be used, once.
type Keys struct {
	source   Source
	set      atomic.Pointer[keySet]
	checked  atomic.Int64  // when the source confirmed set, in seconds since 1970
	asked    atomic.Int64  // when the source was asked last
	asking   chan struct{} // holds one element while the source is being asked
	unusable string        // what was logged
}

// keySet is one generation of keys, by their IDs. It never changes.
type keySet map[string]ed25519.PublicKey

// NewKeys asks the source for its keys. Errors are those of the source, and
// a *guard.InvalidError if it is nil.
func NewKeys(ctx context.Context, source Source) (*Keys, error) {
	if source == nil {
		return nil, guard.Invalid("source", "", "must not be nil")
	}
	k := &Keys{source: source, asking: make(chan struct{}, 1)}
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
	list, unusable, err := k.source(limited)
	if err != nil {
		return err
	}
	next := make(keySet, len(list))
	for _, key := range list {
		if first, twice := next[key.id]; len(key.key) == 0 || twice && !first.Equal(key.key) {
			unusable = append(unusable, guard.Invalid("key", key.id, "is the zero value, or another key with this ID comes first"))
			continue
		}
		next[key.id] = key.key
	}
	if text := fmt.Sprint(errors.Join(unusable...)); text != k.unusable {
		if k.unusable = text; len(unusable) > 0 {
			slog.LogAttrs(ctx, slog.LevelError, "proof_keys_unusable", slog.String("error", text))
		}
	}
	same := func(a, b ed25519.PublicKey) bool { return a.Equal(b) }
	if previous := k.set.Load(); previous == nil || !maps.EqualFunc(next, *previous, same) {
		k.set.Store(&next) // what the previous set verified is verified again
	}
	k.checked.Store(now) // when it was asked, not when it responded
	return nil
}

// confirmed reports whether the source confirmed the keys less than limit before
// now. A clock that was set back makes keys too old, not too young.
func (k *Keys) confirmed(now int64, limit time.Duration) bool {
	age := now - k.checked.Load()
	return age >= 0 && age < int64(limit/time.Second)
}

var errTooOld = errors.New("the source of the keys has not confirmed them for longer than MaxAge")

// current returns the keys that may be used now, in seconds since 1970. It asks
// the source if they are too old or if one is lacking, unless that was done
// a short while ago. It waits for another caller's request only if the keys must
// not be used without it.
func (k *Keys) current(ctx context.Context, now int64, lacking bool) (*keySet, error) {
	if !lacking && k.confirmed(now, Refresh) {
		return k.set.Load(), nil
	}
	if k.confirmed(now, MaxAge) {
		select {
		case k.asking <- struct{}{}:
		default:
			return k.set.Load(), nil
		}
	} else {
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
			slog.LogAttrs(ctx, slog.LevelError, "proof_keys_unavailable", slog.String("error", err.Error()))
		}
	}
	now = max(now, k.checked.Load()) // it may just have been confirmed
	if !k.confirmed(now, MaxAge) {
		return nil, guard.Unavailable("verify proof", guard.Claim{}, cmp.Or(err, errTooOld))
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
		list = append(list, jwkOf(PublicKey{id, (*set)[id]}))
	}
	w.Header().Set("Content-Type", "application/jwk-set+json")
	w.Header().Set("Cache-Control", "public, max-age=6")        // pause
	_ = json.NewEncoder(w).Encode(map[string]any{"keys": list}) // if this fails the client is gone
}
