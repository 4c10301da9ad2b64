package main

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/guard/proof"
	"github.com/fencepost-go/fencepost/httpfence"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/lockhttp"
)

// bearer sends a token with each request.
type bearer struct {
	token string
	base  http.RoundTripper
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.base.RoundTrip(r)
}

// TestProof: a service in another program believes what the lock server signs,
// and nothing else: it has only the address of the public keys. The Go client
// sends the proof. Each refusal leaves the mark unchanged.
func TestProof(t *testing.T) {
	key, stranger := proof.NewPrivateKey(), proof.NewPrivateKey()
	var who identities
	token := who.add(lockhttp.Identity{Subject: "worker", Tenant: "acme", Templates: templates, Audience: audience("acme")})
	foreign := who.add(lockhttp.Identity{Subject: "other", Tenant: "umbrella", Templates: templates, Audience: audience("umbrella")})
	s, err := newServer(t.Context(), pgtest.Pool(t), who.authenticate, key)
	if err != nil {
		t.Fatal(err)
	}
	locks := httptest.NewServer(s)
	t.Cleanup(func() {
		locks.Close()
		if err := s.close(context.Background()); err != nil {
			t.Error(err)
		}
	})

	keys, err := proof.NewKeys(t.Context(), proof.JWKS(locks.URL+keysPath, nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	verify := proof.NewVerifier(keys).Hook(func(*http.Request) (string, error) { return audience("acme"), nil })
	const resource = "acme:billing-close:2026-04"
	marks := guard.NewMemory()
	serve := func(opts *httpfence.Options) *httptest.Server {
		fence, err := httpfence.New(marks, func(*http.Request) (string, error) { return resource, nil }, opts)
		if err != nil {
			t.Fatal(err)
		}
		web := httptest.NewServer(fence.Admit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
		t.Cleanup(web.Close)
		return web
	}
	service := serve(&httpfence.Options{Verify: verify})

	connect := func(token string) (*lockhttp.Issuer, *lockclient.Client) {
		issuer, err := lockhttp.NewIssuer(locks.URL, &http.Client{Transport: bearer{token, http.DefaultTransport}})
		if err != nil {
			t.Fatal(err)
		}
		client, err := lockclient.New(issuer, "worker", nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := client.Close(context.Background()); err != nil {
				t.Error(err)
			}
		})
		return issuer, client
	}
	issuer, client := connect(token)
	transport, err := httpfence.NewTransport(nil, []string{service.URL}, &httpfence.TransportOptions{Proof: issuer.Proof})
	if err != nil {
		t.Fatal(err)
	}
	var claim guard.Claim
	var genuine string
	if err := client.Hold(t.Context(), resource, &lockclient.AcquireOptions{TTL: 10 * time.Minute}, func(ctx context.Context) error {
		claim, _ = guard.ClaimFrom(ctx)
		if genuine, err = issuer.Proof(ctx, claim); err != nil {
			return err
		}
		r, _ := http.NewRequestWithContext(ctx, "POST", service.URL, nil)
		answer, err := (&http.Client{Transport: transport}).Do(r)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		return httpfence.ErrorFrom(answer)
	}); err != nil {
		t.Fatal(err)
	}

	acquired := func(client *lockclient.Client, issuer *lockhttp.Issuer, resource string) (guard.Claim, string) {
		lease, err := client.Acquire(t.Context(), resource, &lockclient.AcquireOptions{TTL: 10 * time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		p, err := issuer.Proof(t.Context(), lease.Claim())
		if err != nil {
			t.Fatal(err)
		}
		return lease.Claim(), p
	}
	_, another := acquired(client, issuer, "acme:billing-close:2026-05")
	theirIssuer, theirClient := connect(foreign)
	_, theirs := acquired(theirClient, theirIssuer, "umbrella:billing-close:2026-04")

	signed := func(by proof.PrivateKey, claim guard.Claim, audience string, until time.Time) string {
		signer, err := proof.NewSigner(by, nil)
		if err != nil {
			t.Fatal(err)
		}
		p, err := signer.Sign(claim, audience, until)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	send := func(web *httptest.Server, claim guard.Claim, p string) *http.Response {
		r, _ := http.NewRequest("POST", web.URL, nil)
		r.Header.Set(httpfence.TokenHeader, claim.Token.String())
		r.Header.Set(httpfence.LeaseHeader, claim.LeaseID)
		r.Header.Set(httpfence.ResourceHeader, httpfence.Encode(claim.Resource))
		if p != "" {
			r.Header.Set(proof.Header, p)
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		return answer
	}
	far, later := claim, time.Now().Add(time.Hour)
	far.Token = guard.MaxToken
	for name, c := range map[string]struct {
		claim  guard.Claim
		proof  string
		status int
	}{
		"no proof":                {far, "", 428},
		"another token's proof":   {far, genuine, 400},
		"an unknown key":          {far, signed(stranger, far, audience("acme"), later), 400},
		"another audience":        {far, signed(key, far, audience("umbrella"), later), 400},
		"another tenant's lease":  {claim, theirs, 400},
		"another resource":        {claim, another, 400},
		"expired":                 {far, signed(key, far, audience("acme"), time.Now().Add(-time.Second)), 400},
		"an expired one in force": {claim, signed(key, claim, audience("acme"), time.Now().Add(-time.Second)), 400},
	} {
		t.Run(name, func(t *testing.T) {
			if got := send(service, c.claim, c.proof); got.StatusCode != c.status {
				t.Errorf("status %d, reason %q, want %d", got.StatusCode, got.Header.Get("X-Fencing-Reason"), c.status)
			}
			if mark, err := marks.Mark(t.Context(), resource); err != nil || mark.Token != claim.Token {
				t.Errorf("the mark is %v, %v", mark, err)
			}
		})
	}
	// The genuine one still passes, and where nobody verifies, the forged token
	// locks its holder out.
	if got := send(service, claim, genuine); got.StatusCode != 200 {
		t.Errorf("the genuine proof: status %d", got.StatusCode)
	}
	if got := send(serve(nil), far, ""); got.StatusCode != 200 {
		t.Errorf("the control: status %d", got.StatusCode)
	}
	if got := send(service, claim, genuine); got.StatusCode != 412 {
		t.Errorf("after the control: status %d", got.StatusCode)
	}
}

// TestSigningKey: the file is created once, readable only by its owner, and
// read from then on; a file without a key is refused.
func TestSigningKey(t *testing.T) {
	f := flags{signingKey: t.TempDir() + "/signing.jwk"}
	first, err := f.signer()
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(f.signingKey)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatal(info, err)
	}
	if second, err := f.signer(); err != nil || second.ID() != first.ID() {
		t.Errorf("%v, then %v, %v", first, second, err)
	}
	if err := os.WriteFile(f.signingKey, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if key, err := f.signer(); err == nil {
		t.Errorf("taken: %v", key)
	}
	err = run(t.Context(), flags{databaseURL: "postgres://", identities: "x"}, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "-signing-key") {
		t.Errorf("without a key: %v", err)
	}
}
