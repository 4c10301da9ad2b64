package proof

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// changing is a source that a test changes.
type changing struct {
	keys  atomic.Pointer[[]PublicKey]
	err   atomic.Pointer[error]
	asked atomic.Int32
}

func (c *changing) set(keys ...PublicKey) { c.keys.Store(&keys) }

func (c *changing) source(context.Context) ([]PublicKey, []error, error) {
	c.asked.Add(1)
	if err := c.err.Load(); err != nil {
		return nil, nil, *err
	}
	return *c.keys.Load(), nil, nil
}

// A key that is removed is refused even for proofs that were verified while it
// was there, and the others keep working.
func TestKeyRemovedWhileCached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old, next := NewPrivateKey(), NewPrivateKey()
		var c changing
		c.set(old.Public())
		v := newVerifier(t, c.source)
		byOld := sign(t, old, claim, audience, time.Now().Add(time.Hour))
		byNext := sign(t, next, claim, audience, time.Now().Add(time.Hour))
		verify := func(when, compact string, ok bool) {
			t.Helper()
			if err := v.Verify(t.Context(), compact, claim); (err == nil) != ok || err != nil && !errors.Is(err, guard.ErrInvalid) {
				t.Errorf("%s: %v", when, err)
			}
		}
		verify("before", byOld, true)
		verify("before", byNext, false)
		c.set(old.Public(), next.Public())
		time.Sleep(DefaultRefresh / 10) // an unknown key asks the source before Refresh is over
		verify("both", byNext, true)
		verify("both", byOld, true)
		c.set(next.Public())
		time.Sleep(DefaultRefresh - time.Second)
		verify("removed, not yet noticed", byOld, true) // the control: it is remembered
		time.Sleep(time.Second)
		verify("removed", byOld, false)
		verify("removed", byNext, true)
		// The same ID with another key is another key.
		c.set(PublicKey{next.id, old.Public().key})
		time.Sleep(DefaultRefresh)
		verify("replaced", byNext, false)
		c.set()
		time.Sleep(DefaultRefresh)
		verify("none", byNext, false)
	})
}

func TestExpiryWhileCached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key := NewPrivateKey()
		v := newVerifier(t, Static(key.Public()))
		compact := sign(t, key, claim, audience, time.Now().Add(30*time.Second))
		for range 30 {
			if err := v.Verify(t.Context(), compact, claim); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		if err := v.Verify(t.Context(), compact, claim); !errors.Is(err, guard.ErrInvalid) || !strings.Contains(err.Error(), "expired") {
			t.Errorf("%v", err)
		}
	})
}

// A source that fails is asked rarely, and the previous keys stay valid until
// MaxAge and no longer.
func TestSourceAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key, stranger := NewPrivateKey(), NewPrivateKey()
		var c changing
		c.set(key.Public())
		var log bytes.Buffer
		keys := guard.Must(NewKeys(t.Context(), c.source, &KeysOptions{Refresh: 10 * time.Second, MaxAge: time.Minute, Logger: slog.New(slog.NewTextHandler(&log, nil))}))
		v := guard.Must(NewVerifier(keys, &VerifierOptions{Audience: audience}))
		compact := sign(t, key, claim, audience, time.Now().Add(time.Hour))
		unknown := sign(t, stranger, claim, audience, time.Now().Add(time.Hour))
		away := errors.New("away")
		c.err.Store(&away)
		for second := range 60 {
			for range 3 {
				if err := v.Verify(t.Context(), compact, claim); err != nil {
					t.Fatalf("after %d s: %v", second, err)
				}
				if err := v.Verify(t.Context(), unknown, claim); !errors.Is(err, guard.ErrInvalid) {
					t.Fatalf("unknown after %d s: %v", second, err)
				}
			}
			time.Sleep(time.Second)
		}
		if n := c.asked.Load(); n > 61 {
			t.Errorf("the source was asked %d times in 60 s", n)
		}
		if err := v.Verify(t.Context(), compact, claim); !errors.Is(err, guard.ErrUnavailable) || !errors.Is(err, away) {
			t.Errorf("after MaxAge: %v", err)
		}
		if err := v.Verify(t.Context(), compact, claim); !errors.Is(err, guard.ErrUnavailable) {
			t.Errorf("after MaxAge, without asking: %v", err)
		}
		if !strings.Contains(log.String(), "proof_keys_unavailable") {
			t.Errorf("the log says %q", log.String())
		}
		w := httptest.NewRecorder()
		keys.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		if w.Code != http.StatusServiceUnavailable {
			t.Errorf("the JWKS: %d", w.Code)
		}
		c.err.Store(nil)
		time.Sleep(time.Second)
		if err := v.Verify(t.Context(), compact, claim); err != nil {
			t.Errorf("back: %v", err)
		}
		c.err.Store(&away)
		if _, err := NewKeys(t.Context(), c.source, nil); !errors.Is(err, away) {
			t.Errorf("at the beginning: %v", err)
		}
	})
}

// While one request asks, the others continue; past MaxAge they wait.
func TestOneAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key := NewPrivateKey()
		var slow atomic.Bool
		asked := 0
		keys := guard.Must(NewKeys(t.Context(), func(ctx context.Context) ([]PublicKey, []error, error) {
			asked++
			if slow.Load() {
				<-ctx.Done()
				return nil, nil, ctx.Err()
			}
			return []PublicKey{key.Public()}, nil, nil
		}, &KeysOptions{Refresh: time.Minute, MaxAge: time.Minute + 2*time.Second, Logger: slog.New(slog.DiscardHandler)}))
		v := guard.Must(NewVerifier(keys, &VerifierOptions{Audience: audience}))
		compact := sign(t, key, claim, audience, time.Now().Add(time.Hour))
		slow.Store(true)
		time.Sleep(time.Minute)
		first := make(chan error, 1)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { first <- v.Verify(ctx, compact, claim) }()
		synctest.Wait()
		cancel() // the request to the source is for all
		start := time.Now()
		if err := v.Verify(t.Context(), compact, claim); err != nil || time.Since(start) != 0 {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		time.Sleep(3 * time.Second)
		if err := v.Verify(t.Context(), compact, claim); !errors.Is(err, guard.ErrUnavailable) || time.Since(start) != fetchTimeout {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		// It began while the keys were valid.
		if err := <-first; err != nil {
			t.Errorf("the one that asked: %v", err)
		}
		if asked != 2 {
			t.Errorf("asked %d times", asked)
		}
	})
}

// A verifier that gets the lock server's keys from its JWKS follows a rotation.
func TestJWKS(t *testing.T) {
	old, next := NewPrivateKey(), NewPrivateKey()
	var c changing
	c.set(old.Public())
	server := httptest.NewServer(newKeys(t, c.source))
	defer server.Close()
	keys, _, err := JWKS(server.URL, server.Client())(t.Context())
	if err != nil || len(keys) != 1 || keys[0].id != old.id || !keys[0].key.Equal(old.Public().key) {
		t.Fatalf("%v, %v", keys, err)
	}
	v := newVerifier(t, JWKS(server.URL, nil))
	if err := v.Verify(t.Context(), sign(t, old, claim, audience, time.Now().Add(time.Minute)), claim); err != nil {
		t.Error(err)
	}
	if err := v.Verify(t.Context(), sign(t, next, claim, audience, time.Now().Add(time.Minute)), claim); !errors.Is(err, guard.ErrInvalid) {
		t.Error(err)
	}
	answer, err := http.Post(server.URL, "text/plain", nil)
	if err != nil || answer.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST: %v, %v", answer, err)
	}
	_ = answer.Body.Close()

	body, status := "", http.StatusOK
	fake := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if status == http.StatusFound {
			http.Redirect(w, r, server.URL, status)
			return
		}
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}))
	defer fake.Close()
	public := string(guard.Must(json.Marshal(old.Public())))
	for _, step := range []struct {
		status int
		body   string
		keys   int
		want   error
	}{
		{200, `{"keys":[]}`, 0, nil},
		{200, `{"keys":[` + public + `,{"kty":"RSA","kid":"a/b","n":"AQAB"},{"kty":"OKP","crv":"X25519","kid":"b","x":"AQAB"}]}`, 1, nil},
		{200, `{}`, 0, guard.ErrInvalid},
		{200, ``, 0, guard.ErrInvalid},
		{200, `{"keys":[]` + strings.Repeat(" ", maxKeys) + `}`, 0, guard.ErrInvalid},
		{302, ``, 0, guard.ErrUnavailable},
		{404, `{"keys":[]}`, 0, guard.ErrUnavailable},
		{503, ``, 0, guard.ErrUnavailable},
	} {
		status, body = step.status, step.body
		keys, unusable, err := JWKS(fake.URL, nil)(t.Context())
		if len(keys) != step.keys || len(unusable) != 0 || !errors.Is(err, step.want) {
			t.Errorf("%d %.60s: %v, %v", step.status, step.body, keys, err)
		}
	}
	fake.Close()
	if _, _, err := JWKS(fake.URL, nil)(t.Context()); !errors.Is(err, guard.ErrUnavailable) {
		t.Errorf("closed: %v", err)
	}
	for _, address := range []string{"", "keys.json", "http://locks.example/keys", "file:///etc/passwd", "https://", "http://localhost.evil.example/"} {
		if _, _, err := JWKS(address, nil)(t.Context()); !errors.Is(err, guard.ErrInvalid) {
			t.Errorf("%q: %v", address, err)
		}
	}
}

// A JWKS is read key by key: keys that cannot be used harm no other, and each is
// logged once by its name; odd key IDs and the newer name of the algorithm are fine.
func TestOddKeysOfAJWKS(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		good, odd, newer, other := NewPrivateKey(), NewPrivateKey(), NewPrivateKey(), NewPrivateKey()
		odd.id = "2026.11"
		member := func(k PrivateKey, old, new string) string {
			return strings.Replace(string(guard.Must(json.Marshal(k.Public()))), old, new, 1)
		}
		public := func(k PrivateKey) string { return member(k, "", "") }
		secret := NewPrivateKey()
		list := []string{
			member(other, `"kid":"`+other.id+`",`, ""), // no kid
			`{"kty":"OKP","crv":"Ed25519","kid":"short","x":"AQAB"}`,
			string(secret.JWK()),
			member(other, `"kid":"`+other.id+`"`, `"kid":"`+good.id+`"`), // behind good's own
			member(other, `"alg":"EdDSA"`, `"alg":"RS256"`),
			member(other, `"kid":"`+other.id+`"`, `"kid":7`),
			`1`,
			`{"kty":"RSA","kid":"ignored","n":"AQAB"}`,
		}
		odds := len(list) - 1
		body := `{"keys":[` + strings.Join(append([]string{public(good), public(odd), member(newer, `"alg":"EdDSA"`, `"alg":"Ed25519"`)}, list...), ",") + `]}`
		var log strings.Builder
		keys, err := NewKeys(t.Context(), func(context.Context) ([]PublicKey, []error, error) { return parseJWKS([]byte(body)) },
			&KeysOptions{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		v := guard.Must(NewVerifier(keys, &VerifierOptions{Audience: audience}))
		verify := func() {
			for name, k := range map[string]PrivateKey{"good": good, "2026.11": odd, "alg Ed25519": newer} {
				if err := v.Verify(t.Context(), sign(t, k, claim, audience, time.Now().Add(time.Hour)), claim); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
		verify()
		time.Sleep(2 * DefaultRefresh)
		verify()
		for name, k := range map[string]PrivateKey{"unusable": other, "published private key": secret} {
			if err := v.Verify(t.Context(), sign(t, k, claim, audience, time.Now().Add(time.Hour)), claim); !errors.Is(err, guard.ErrInvalid) {
				t.Errorf("control, %s: %v", name, err)
			}
		}
		if text := log.String(); strings.Count(text, "proof_key_unusable") != odds || !strings.Contains(text, `\"short\"`) || strings.Contains(text, encoding.EncodeToString(seed(secret))) {
			t.Errorf("%d records, want %d:\n%s", strings.Count(text, "proof_key_unusable"), odds, text)
		}
	})
}

// Many proofs share a place of the cache, and an evicted one is verified again.
func TestCacheIsBounded(t *testing.T) {
	key := NewPrivateKey()
	v := newVerifier(t, Static(key.Public()))
	first := sign(t, key, claim, audience, time.Unix(4102444800, 0))
	for range 2 {
		for i := range v.cache { // as if another proof had every place
			v.cache[i].Store(&verified{compact: "another", by: v.keys.set.Load(), content: content{Audience: audience}})
		}
		if err := v.Verify(t.Context(), first, claim); err != nil {
			t.Fatal(err)
		}
	}
}

func TestHook(t *testing.T) {
	key := NewPrivateKey()
	v := newVerifier(t, Static(key.Public()))
	soon := time.Now().Add(time.Minute)
	own, globex := sign(t, key, claim, audience, soon), sign(t, key, claim, "ledger/globex", soon)
	tenant := func(r *http.Request) (string, error) {
		if name := r.PathValue("tenant"); name != "" {
			return "ledger/" + name, nil
		}
		return "", guard.ErrNotFound
	}
	for name, c := range map[string]struct {
		lines    []string
		tenant   string
		constant bool
		want     error
	}{
		"own":               {[]string{own}, "acme", false, nil},
		"constant":          {[]string{own}, "", true, nil},
		"other tenant":      {[]string{globex}, "acme", false, guard.ErrInvalid},
		"that tenant":       {[]string{globex}, "globex", false, nil},
		"other constant":    {[]string{globex}, "", true, guard.ErrInvalid},
		"none":              {nil, "acme", false, guard.ErrMissing},
		"empty":             {[]string{""}, "acme", false, guard.ErrMissing},
		"two":               {[]string{own, own}, "acme", false, guard.ErrInvalid},
		"nobody's audience": {[]string{own}, "", false, guard.ErrNotFound},
	} {
		r := httptest.NewRequest("POST", "/", nil)
		r.Header[Header] = c.lines
		r.SetPathValue("tenant", c.tenant)
		audience := tenant
		if c.constant {
			audience = nil
		}
		hook := guard.Must(v.Hook(audience))
		if err := hook(claim, r); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
