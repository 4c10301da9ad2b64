package proof

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
)

// changing is a source that a test changes.
type changing struct {
	keys  atomic.Pointer[[]PublicKey]
	err   atomic.Pointer[error]
	slow  atomic.Bool // it does not respond
	asked atomic.Int32
}

func (c *changing) set(keys ...PublicKey) { c.keys.Store(&keys) }

func (c *changing) source(ctx context.Context) ([]PublicKey, error) {
	c.asked.Add(1)
	if c.slow.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if err := c.err.Load(); err != nil {
		return nil, *err
	}
	return *c.keys.Load(), nil
}

// A key that is removed is refused even for proofs that were verified while it
// was there, and the others keep working.
func TestKeyRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old, next := NewPrivateKey(), NewPrivateKey()
		var c changing
		c.set(old.Public())
		v := newVerifier(t, c.source)
		byOld := sign(t, old, claim, audience, time.Now().Add(time.Hour))
		byNext := sign(t, next, claim, audience, time.Now().Add(time.Hour))
		expect := func(when, compact string, ok bool) {
			t.Helper()
			if err := verify(t, v, compact, claim); (err == nil) != ok || err != nil && !errors.Is(err, guard.ErrInvalid) {
				t.Errorf("%s: %v", when, err)
			}
		}
		expect("before", byOld, true)
		expect("before", byNext, false)
		c.set(old.Public(), next.Public())
		time.Sleep(Refresh / 10) // an unknown key asks the source before Refresh is over
		expect("both", byNext, true)
		expect("both", byOld, true)
		c.set(next.Public())
		time.Sleep(Refresh - time.Second)
		expect("removed, not yet noticed", byOld, true) // the control: the keys are not asked for yet
		time.Sleep(time.Second)
		expect("removed", byOld, false)
		expect("removed", byNext, true)
		// The same ID with another key is another key.
		c.set(PublicKey{id: next.id, key: old.Public().key})
		time.Sleep(Refresh)
		expect("replaced", byNext, false)
		c.set()
		time.Sleep(Refresh)
		expect("none", byNext, false)
	})
}

// A JWKS is read key by key: keys that cannot be used harm no other, and each is
// logged once by its name; odd key IDs and the newer name of the algorithm are fine.
func TestOddKeysOfAJWKS(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		good, odd, newer, other := NewPrivateKey(), NewPrivateKey(), NewPrivateKey(), NewPrivateKey()
		odd.id = "2026.11"
		member := func(k PrivateKey, old, new string) string {
			return strings.Replace(string(guard.Must(json.Marshal(jwkOf(k.Public())))), old, new, 1)
		}
		public := func(k PrivateKey) string { return member(k, "", "") }
		secret := NewPrivateKey()
		list := []string{
			member(other, `"kid":"`+other.id+`",`, ""), // no kid
			`{"kty":"OKP","crv":"Ed25519","kid":"short","x":"AQAB"}`,
			member(other, `"sig"`, `"enc"`), // not for signatures: ignored
			string(secret.JWK()),
			member(other, `"kid":"`+other.id+`"`, `"kid":"`+good.id+`"`), // behind good's own
			member(other, `"alg":"EdDSA"`, `"alg":"RS256"`),
			member(other, `"kid":"`+other.id+`"`, `"kid":7`),
			`1`,
			`{"kty":"RSA","kid":"ignored","n":"AQAB"}`,
		}
		odds := len(list) - 2
		body := `{"keys":[` + strings.Join(append([]string{public(good), public(odd), member(newer, `"alg":"EdDSA"`, `"alg":"Ed25519"`)}, list...), ",") + `]}`
		var log strings.Builder
		logTo(t, &log)
		v := newVerifier(t, func(context.Context) ([]PublicKey, error) { return parseJWKS([]byte(body)) })
		all := func() {
			for name, k := range map[string]PrivateKey{"good": good, "2026.11": odd, "alg Ed25519": newer} {
				if err := verify(t, v, sign(t, k, claim, audience, time.Now().Add(time.Hour)), claim); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
		all()
		time.Sleep(2 * Refresh)
		all()
		for name, k := range map[string]PrivateKey{"unusable": other, "published private key": secret} {
			if err := verify(t, v, sign(t, k, claim, audience, time.Now().Add(time.Hour)), claim); !errors.Is(err, guard.ErrInvalid) {
				t.Errorf("control, %s: %v", name, err)
			}
		}
		if text := log.String(); strings.Count(text, "proof_keys_unusable") != 1 || strings.Count(text, "of the JWKS") != odds-1 || !strings.Contains(text, "comes first") || !strings.Contains(text, `\"short\"`) || strings.Contains(text, encoding.EncodeToString(seed(secret))) {
			t.Errorf("want one record of %d keys:\n%s", odds, text)
		}
	})
}

// A source that fails is asked rarely, and the previous keys stay valid until
// MaxAge and no longer. While one request asks, the others continue; past MaxAge
// they wait for it.
func TestSourceAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key, stranger := NewPrivateKey(), NewPrivateKey()
		var c changing
		c.set(key.Public())
		var log bytes.Buffer
		logTo(t, &log)
		keys := guard.Must(NewKeys(t.Context(), c.source, nil))
		v := NewVerifier(keys)
		compact := sign(t, key, claim, audience, time.Now().Add(24*time.Hour))
		unknown := sign(t, stranger, claim, audience, time.Now().Add(24*time.Hour))
		away := errors.New("away")
		c.err.Store(&away)
		const minutes = 59
		for range minutes * 60 {
			testkit.Must(t, verify(t, v, compact, claim))
			if err := verify(t, v, unknown, claim); !errors.Is(err, guard.ErrInvalid) {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		if n := c.asked.Load(); n > 1+minutes*10 {
			t.Errorf("the source was asked %d times in %d minutes", n, minutes)
		}
		if !strings.Contains(log.String(), "proof_keys_unavailable") {
			t.Errorf("the log says %q", log.String())
		}
		time.Sleep(time.Minute - 2*time.Second)
		c.slow.Store(true)
		start := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		first := make(chan error, 1)
		go func() { first <- v.Verify(ctx, compact, audience, claim) }()
		synctest.Wait()
		cancel() // the request to the source is for all
		if err := verify(t, v, compact, claim); err != nil || time.Since(start) != 0 {
			t.Errorf("while one asks: %v after %v", err, time.Since(start))
		}
		time.Sleep(3 * time.Second)
		if err := verify(t, v, compact, claim); !errors.Is(err, guard.ErrUnavailable) || time.Since(start) != fetchTimeout {
			t.Errorf("after MaxAge: %v after %v", err, time.Since(start))
		}
		if err := <-first; err != nil { // it began while the keys were valid
			t.Errorf("the one that asked: %v", err)
		}
		w := httptest.NewRecorder()
		keys.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		if w.Code != http.StatusServiceUnavailable {
			t.Errorf("the JWKS: %d", w.Code)
		}
		c.err.Store(nil)
		c.slow.Store(false)
		time.Sleep(pause)
		if err := verify(t, v, compact, claim); err != nil {
			t.Errorf("back: %v", err)
		}
	})
}

// Past MaxAge the requests that wait for a source that does not respond share one
// question, and each ends with its own context.
func TestWaitersOfASlowSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key := NewPrivateKey()
		var c changing
		c.set(key.Public())
		logTo(t, io.Discard)
		v := newVerifier(t, c.source)
		compact := sign(t, key, claim, audience, time.Now().Add(24*time.Hour))
		away := errors.New("away")
		c.err.Store(&away)
		c.slow.Store(true)
		time.Sleep(MaxAge)
		asked, start := c.asked.Load(), time.Now()
		errs := make(chan error, 20)
		for range cap(errs) {
			go func() { errs <- v.Verify(t.Context(), compact, audience, claim) }()
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := v.Verify(ctx, compact, audience, claim); !errors.Is(err, guard.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("a request of one second: %v after %v", err, time.Since(start))
		}
		for range cap(errs) {
			if err := <-errs; !errors.Is(err, guard.ErrUnavailable) {
				t.Error(err)
			}
		}
		if n := c.asked.Load() - asked; n != 1 || time.Since(start) != fetchTimeout {
			t.Errorf("the source was asked %d times, in %v", n, time.Since(start))
		}
	})
}

// A verifier that gets the lock server's keys from its JWKS has the same keys.
func TestJWKS(t *testing.T) {
	key := NewPrivateKey()
	server := httptest.NewServer(guard.Must(NewKeys(t.Context(), Static(key.Public()), nil)))
	defer server.Close()
	published, err := JWKS(server.URL, nil)(t.Context()) // not by NewKeys, which asks for at most five seconds
	testkit.Must(t, err)
	testkit.Check(t, verify(t, newVerifier(t, Static(published...)), sign(t, key, claim, audience, time.Now().Add(time.Hour)), claim))
	body, status := "", http.StatusOK
	fake := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", server.URL)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	defer fake.Close()
	for _, step := range []struct {
		status int
		body   string
		want   error
	}{
		{200, `{"keys":[]}`, nil}, {200, `{}`, guard.ErrInvalid}, {200, ``, guard.ErrInvalid},
		{200, `{"keys":[]` + strings.Repeat(" ", maxKeys) + `}`, guard.ErrInvalid},
		{302, ``, guard.ErrUnavailable}, {404, `{"keys":[]}`, guard.ErrUnavailable},
	} {
		status, body = step.status, step.body
		if keys, err := JWKS(fake.URL, nil)(t.Context()); len(keys) != 0 || !errors.Is(err, step.want) {
			t.Errorf("%d %.60s: %v, %v", step.status, step.body, keys, err)
		}
	}
	fake.Close()
	for address, want := range map[string]error{
		fake.URL: guard.ErrUnavailable, "": guard.ErrInvalid, "keys.json": guard.ErrInvalid, "http://locks.example/keys": guard.ErrInvalid,
		"file:///etc/passwd": guard.ErrInvalid, "https://": guard.ErrInvalid, "http://localhost.evil.example/": guard.ErrInvalid,
	} {
		if _, err := JWKS(address, nil)(t.Context()); !errors.Is(err, want) {
			t.Errorf("%q: %v", address, err)
		}
	}
}

func TestHook(t *testing.T) {
	key := NewPrivateKey()
	v := newVerifier(t, Static(key.Public()))
	own, globex := sign(t, key, claim, audience, time.Now().Add(time.Hour)), sign(t, key, claim, "ledger/globex", time.Now().Add(time.Hour))
	hook := v.Hook(func(r *http.Request) (string, error) {
		if name := r.PathValue("tenant"); name != "" {
			return "ledger/" + name, nil
		}
		return "", guard.ErrNotFound
	})
	for _, c := range []struct {
		tenant string
		lines  []string
		want   error
	}{
		{"acme", []string{own}, nil}, {"acme", []string{globex}, guard.ErrInvalid}, {"globex", []string{globex}, nil}, {"acme", nil, guard.ErrMissing},
		{"acme", []string{""}, guard.ErrMissing}, {"acme", []string{own, own}, guard.ErrInvalid}, {"", []string{own}, guard.ErrNotFound},
	} {
		r := httptest.NewRequest("POST", "/", nil)
		r.Header[Header] = c.lines
		r.SetPathValue("tenant", c.tenant)
		if err := hook(claim, r); !errors.Is(err, c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
