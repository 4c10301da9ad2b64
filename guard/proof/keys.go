package proof

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// The defaults of [KeysOptions].
const (
	DefaultRefresh = time.Minute
	DefaultMaxAge  = time.Hour
)

// KeysOptions configures [NewKeys]. The zero value of every field is its
// default.
type KeysOptions struct {
	// Refresh is how old the keys may be, in whole seconds rounded down, before
	// the next use asks the source again: a key that was removed is refused
	// from then on. An unknown key ID asks sooner, but at most once every tenth
	// of Refresh. 0 means [DefaultRefresh]; at least a second.
	Refresh time.Duration
	// MaxAge is how long keys that the source could not confirm are used; after
	// that nothing is verified ([guard.ErrUnavailable]). 0 means
	// [DefaultMaxAge], or Refresh if that is longer; not below Refresh.
	MaxAge time.Duration
	// Logger logs failures of the source, and once each key that cannot be used;
	// nil means [slog.Default] at that moment.
	Logger *slog.Logger
}

// Keys is a set of public keys that follows its source. As an [http.Handler] it
// serves the set as a JWKS (RFC 7517, section 5). Make one with [NewKeys]; the
// zero value is not usable. It is safe for concurrent use and runs nothing in
// the background: the request that finds the keys too old asks the source, for
// at most fetchTimeout, while others continue with the previous keys.
type Keys struct {
	source Source
	opts   KeysOptions

	set     atomic.Pointer[keySet]
	checked atomic.Int64  // when the source confirmed set, in seconds since 1970
	asked   atomic.Int64  // when the source was asked last
	asking  chan struct{} // holds one element while the source is being asked

	unusable map[string]bool // what was logged and is still so
}

// keySet is one generation of keys. It never changes.
type keySet struct {
	byID map[string]PublicKey
	list []PublicKey
}

// fetchTimeout bounds one request to a source.
const fetchTimeout = 5 * time.Second

// NewKeys asks the source for its keys. opts may be nil. Errors are those of the
// source, and a *guard.InvalidError for bad options.
func NewKeys(ctx context.Context, source Source, opts *KeysOptions) (*Keys, error) {
	k := &Keys{source: source, asking: make(chan struct{}, 1)}
	if opts != nil {
		k.opts = *opts
	}
	if source == nil {
		return nil, guard.Invalid("source", "", "must not be nil")
	}
	if k.opts.Refresh == 0 {
		k.opts.Refresh = DefaultRefresh
	}
	if k.opts.Refresh < time.Second {
		return nil, guard.Invalid("KeysOptions.Refresh", k.opts.Refresh.String(), "must be at least a second")
	}
	if k.opts.MaxAge == 0 {
		k.opts.MaxAge = max(DefaultMaxAge, k.opts.Refresh)
	}
	if k.opts.MaxAge < k.opts.Refresh {
		return nil, guard.Invalid("KeysOptions.MaxAge", k.opts.MaxAge.String(), "must not be below Refresh")
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
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	list, unusable, err := k.source(ctx)
	if err != nil {
		return err
	}
	next := &keySet{byID: make(map[string]PublicKey, len(list))}
	for _, key := range list {
		if first, twice := next.byID[key.id]; len(key.key) == 0 || twice && !first.key.Equal(key.key) {
			unusable = append(unusable, guard.Invalid("key", key.id, "is the zero value, or another key with this ID comes first"))
		} else if !twice {
			next.byID[key.id] = key
			next.list = append(next.list, key)
		}
	}
	k.report(ctx, unusable)
	if !next.same(k.set.Load()) {
		k.set.Store(next) // what the previous set verified is verified again
	}
	k.checked.Store(now) // when it was asked, not when it answered
	return nil
}

// report logs each unusable key once, until it has gone.
func (k *Keys) report(ctx context.Context, unusable []error) {
	now := make(map[string]bool, len(unusable))
	for _, err := range unusable {
		text := err.Error()
		if !k.unusable[text] && !now[text] {
			k.logger().LogAttrs(ctx, slog.LevelError, "proof_key_unusable", slog.String("error", text))
		}
		now[text] = true
	}
	k.unusable = now
}

func (s *keySet) same(other *keySet) bool {
	if other == nil || len(s.byID) != len(other.byID) {
		return false
	}
	for id, key := range s.byID {
		if !key.key.Equal(other.byID[id].key) {
			return false
		}
	}
	return true
}

// current returns the keys that may be used now, in seconds since 1970. A clock
// that was set back makes them too old, not too young.
func (k *Keys) current(ctx context.Context, now int64) (*keySet, error) {
	age := now - k.checked.Load()
	if age >= 0 && age < seconds(k.opts.Refresh) {
		return k.set.Load(), nil
	}
	return k.refreshed(ctx, now, k.set.Load())
}

// refreshed returns the keys, after asking the source unless that was done a
// short while ago or is being done. It waits for another caller's request only
// if the keys must not be used without an answer.
func (k *Keys) refreshed(ctx context.Context, now int64, seen *keySet) (*keySet, error) {
	usable := func() bool { age := now - k.checked.Load(); return age >= 0 && age < seconds(k.opts.MaxAge) }
	alone := false
	select {
	case k.asking <- struct{}{}:
		alone = true
	default:
		if usable() {
			break
		}
		select {
		case k.asking <- struct{}{}:
			alone = true
		case <-ctx.Done():
			return nil, guard.Unavailable("verify proof", guard.Claim{}, ctx.Err())
		}
	}
	var err error
	if alone {
		since := now - k.asked.Load()
		if k.set.Load() == seen && (since < 0 || since >= k.pause()) {
			// The request that asks on behalf of all must not cut it off.
			if err = k.load(context.WithoutCancel(ctx)); err != nil {
				k.logger().LogAttrs(ctx, slog.LevelError, "proof_keys_unavailable", slog.String("error", err.Error()))
			}
		}
		<-k.asking
	}
	now = max(now, k.checked.Load()) // it may just have been confirmed
	if !usable() {
		if err == nil {
			err = errTooOld
		}
		return nil, guard.Unavailable("verify proof", guard.Claim{}, err)
	}
	return k.set.Load(), nil
}

var errTooOld = errors.New("the source of the keys has not confirmed them for longer than MaxAge")

// find returns the key with the ID kid, from the set or from the one that the
// source has by now.
func (k *Keys) find(ctx context.Context, set *keySet, kid string, now int64) (PublicKey, *keySet, error) {
	key, ok := set.byID[kid]
	if !ok {
		var err error
		if set, err = k.refreshed(ctx, now, set); err != nil {
			return PublicKey{}, nil, err
		}
		if key, ok = set.byID[kid]; !ok {
			return PublicKey{}, nil, malformed("is signed by a key that is not in the set")
		}
	}
	return key, set, nil
}

// pause is the minimum number of seconds between two requests.
func (k *Keys) pause() int64 { return max(1, seconds(k.opts.Refresh)/10) }

func seconds(d time.Duration) int64 { return int64(d / time.Second) }

func (k *Keys) logger() *slog.Logger {
	if k.opts.Logger != nil {
		return k.opts.Logger
	}
	return slog.Default()
}

// ServeHTTP serves the set as a JWKS, for GET and HEAD.
func (k *Keys) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, http.StatusText(http.StatusMethodNotAllowed), http.StatusMethodNotAllowed)
		return
	}
	set, err := k.current(r.Context(), time.Now().Unix())
	var body []byte
	if err == nil {
		body, err = json.Marshal(struct {
			Keys []PublicKey `json:"keys"`
		}{append([]PublicKey{}, set.list...)})
	}
	if err != nil {
		http.Error(w, http.StatusText(http.StatusServiceUnavailable), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/jwk-set+json")
	w.Header().Set("Cache-Control", "public, max-age="+strconv.FormatInt(k.pause(), 10))
	_, _ = w.Write(body)
}
