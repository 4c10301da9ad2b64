package httpfence

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/guard/proof"
)

// tape is a RoundTripper that records requests and responds with nothing of interest.
type tape struct {
	sent   []*http.Request
	answer func(*http.Request) (*http.Response, error)
	idle   bool
}

func (p *tape) RoundTrip(r *http.Request) (*http.Response, error) {
	p.sent = append(p.sent, r)
	if r.Body != nil {
		_ = r.Body.Close()
	}
	if p.answer != nil {
		return p.answer(r)
	}
	return &http.Response{StatusCode: 204, Body: http.NoBody, Request: r}, nil
}

func (p *tape) CloseIdleConnections() { p.idle = true }

type body struct {
	io.Reader
	closed atomic.Bool
}

func (b *body) Close() error { b.closed.Store(true); return nil }

type lease struct {
	claim guard.Claim
	lost  atomic.Bool
}

func (l *lease) Claim() guard.Claim { return l.claim }
func (l *lease) Valid() bool        { return !l.lost.Load() }

var held = guard.Claim{Resource: "r", Token: 11, LeaseID: "b"}

func outgoing(t testing.TB, ctx context.Context, target string) (*http.Request, *body) {
	t.Helper()
	b := &body{Reader: strings.NewReader("x")}
	r := guard.Must(http.NewRequestWithContext(ctx, "POST", "http://placeholder.test/", b))
	r.URL = guard.Must(url.Parse(target))
	return r, b
}

func TestTransportOrigins(t *testing.T) {
	base := &tape{}
	tr := newTransport(base, []string{"https://ledger.internal:8443", "HTTPS://Billing.Internal/", "http://[::1]:8080", "http://plain.test:0080"}, nil)
	ctx := guard.WithClaim(t.Context(), held)
	for target, ours := range map[string]bool{
		"https://ledger.internal:8443/x":       true,
		"https://LEDGER.internal:8443/x":       true,
		"https://ledger.internal:08443/x":      true,
		"https://user:pw@ledger.internal:8443": true,
		"https://billing.internal":             true,
		"https://billing.internal:443/x?y#z":   true,
		"https://billing.internal:/x":          true,
		"http://[::1]:8080/":                   true,
		"http://plain.test/":                   true,

		"http://ledger.internal:8443/":            false,
		"https://ledger.internal/":                false,
		"https://ledger.internal:443/":            false,
		"https://ledger.internal.:8443/":          false,
		"https://ledger.internal.evil.test:8443/": false,
		"https://evil.test:8443/ledger.internal":  false,
		"https://ledger.internal@evil.test:8443/": false,
		"https://xledger.internal:8443/":          false,
		"https://sub.billing.internal/":           false,
		"http://billing.internal/":                false,
		"http://billing.internal:443/":            false,
		"http://[::2]:8080/":                      false,
		"http://[::1%25eth0]:8080/":               false,
		"ftp://plain.test/":                       false,
		"//billing.internal/":                     false,
		"https://\u212aedger.internal:8443/":      false,
		"https://billing.interna\u217c/":          false,
		"https://billing.internal:99999/":         false,
	} {
		r, _ := outgoing(t, ctx, target)
		r.Header.Set("X-Other", "kept")
		if _, err := tr.RoundTrip(r); err != nil {
			t.Fatalf("%s: %v", target, err)
		}
		sent := base.sent[len(base.sent)-1]
		token, id := sent.Header[TokenHeader], sent.Header[LeaseHeader]
		if ours != (len(token) == 1 && token[0] == "11" && len(id) == 1 && id[0] == "b") || !ours && len(token)+len(id) > 0 {
			t.Errorf("%s: sent %q, %q", target, token, id)
		}
		if sent.Header.Get("X-Other") != "kept" || r.Header.Get(TokenHeader) != "" || sent == r {
			t.Errorf("%s: the request was not cloned well", target)
		}
	}
}

func TestTransportRemovesWhatIsThere(t *testing.T) {
	base := &tape{}
	tr := newTransport(base, []string{"http://ours.test"}, nil)
	withHeaders := func(ctx context.Context, target string) http.Header {
		r, _ := outgoing(t, ctx, target)
		r.Header["x-fencing-token"] = []string{"1"}
		r.Header["X-Fencing-Token"] = []string{"2", "3"}
		r.Header["X-FENCING-LEASE"] = []string{"z"}
		r.Header["x-Fencing-Resource"] = []string{"other"}
		before := r.Header.Clone()
		if _, err := tr.RoundTrip(r); err != nil {
			t.Fatal(err)
		}
		for name := range before {
			if len(r.Header[name]) != len(before[name]) {
				t.Errorf("%s was changed in the caller's request", name)
			}
		}
		return base.sent[len(base.sent)-1].Header
	}
	if h := withHeaders(t.Context(), "http://other.test/"); len(h) != 0 {
		t.Errorf("other origin: %v", h)
	}
	noLease := guard.WithClaim(t.Context(), guard.Claim{Resource: "acme:p,\u00e4 100%", Token: 7})
	if h := withHeaders(noLease, "http://ours.test/"); len(h) != 2 || len(h[TokenHeader]) != 1 || h.Get(TokenHeader) != "7" || h.Get(ResourceHeader) != "acme:p%2C%C3%A4%20100%25" {
		t.Errorf("our origin: %v", h)
	}
	// Without a claim the caller's own fields are kept.
	if h := withHeaders(t.Context(), "http://ours.test/"); len(h) != 4 {
		t.Errorf("no claim: %v", h)
	}
	r := &http.Request{Method: "POST", URL: &url.URL{Scheme: "http", Host: "ours.test"}} // no Header map
	if _, err := tr.RoundTrip(r.WithContext(noLease)); err != nil || r.Header != nil {
		t.Errorf("%v, %v", err, r.Header)
	}
	r.Method = "" // a GET, which may be repeated
	if _, err := tr.RoundTrip(r.WithContext(noLease)); err != nil || base.sent[len(base.sent)-1].Body != nil {
		t.Errorf("%v, or the request was sent as a write", err)
	}
}

func TestTransportFailsLocally(t *testing.T) {
	lost := &lease{claim: held}
	lost.lost.Store(true)
	for name, c := range map[string]struct {
		ctx  context.Context
		want error
	}{
		"lease lost":     {guard.WithLease(t.Context(), lost), guard.ErrLeaseLost},
		"lease held":     {guard.WithLease(t.Context(), &lease{claim: held}), nil},
		"claim only":     {guard.WithClaim(guard.WithLease(t.Context(), lost), held), nil},
		"no resource":    {guard.WithClaim(t.Context(), guard.Claim{Token: 1}), guard.ErrInvalid},
		"no token":       {guard.WithClaim(t.Context(), guard.Claim{Resource: "r"}), guard.ErrInvalid},
		"negative token": {guard.WithClaim(t.Context(), guard.Claim{Resource: "r", Token: -1}), guard.ErrInvalid},
		"newline":        {guard.WithClaim(t.Context(), guard.Claim{Resource: "r", Token: 1, LeaseID: "a\nX: y"}), guard.ErrInvalid},
		"no claim":       {t.Context(), nil},
	} {
		t.Run(name, func(t *testing.T) {
			base := &tape{}
			tr := newTransport(base, []string{"http://ours.test"}, nil)
			r, b := outgoing(t, c.ctx, "http://ours.test/x")
			_, err := (&http.Client{Transport: tr}).Do(r)
			if !errors.Is(err, c.want) || (len(base.sent) == 1) != (c.want == nil) {
				t.Errorf("%v, %d sent", err, len(base.sent))
			}
			if !b.closed.Load() {
				t.Error("the body was not closed")
			}
			var gone *guard.LostError
			if c.want == guard.ErrLeaseLost && (!errors.As(err, &gone) || gone.Claim != held || errors.As(err, new(*guard.RejectedError))) {
				t.Errorf("%#v", err)
			}
			// A proof changes nothing.
			proved := newTransport(base, []string{"http://ours.test"}, &TransportOptions{Proof: func(context.Context, guard.Claim) (string, error) { return "p", nil }})
			r, _ = outgoing(t, c.ctx, "http://ours.test/x")
			if _, err := proved.RoundTrip(r); !errors.Is(err, c.want) {
				t.Errorf("with a proof: %v", err)
			}
			// It ignores other origins.
			r, _ = outgoing(t, c.ctx, "http://other.test/x")
			if _, err := tr.RoundTrip(r); err != nil {
				t.Errorf("other origin: %v", err)
			}
		})
	}
}

// TestTransportDoesNotRetry: one request, one attempt; the response is passed on
// unchanged. TestTransportSaysWhatWasNotSent has the errors.
func TestTransportDoesNotRetry(t *testing.T) {
	for _, status := range []int{409, 412, 428, 429, 500, 502, 503, 504} {
		base := &tape{answer: func(r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: status, Body: http.NoBody}, nil
		}}
		r, _ := outgoing(t, guard.WithClaim(t.Context(), held), "http://ours.test/")
		resp, err := newTransport(base, []string{"http://ours.test"}, nil).RoundTrip(r)
		if err != nil || resp.StatusCode != status || len(base.sent) != 1 {
			t.Errorf("%d: %v, %d sent", status, err, len(base.sent))
		}
	}
	base := &tape{}
	(&http.Client{Transport: newTransport(base, []string{"http://ours.test"}, nil)}).CloseIdleConnections()
	if !base.idle {
		t.Error("CloseIdleConnections is not passed on")
	}
}

func newTransport(base http.RoundTripper, origins []string, opts *TransportOptions) *Transport {
	return guard.Must(NewTransport(base, origins, opts))
}

// TestTransportRedirects follows real redirects, of the kind that repeats method
// and body at the new location. A server that may not see a token gets none, and must
// not choose what it is used for. http.Client by itself would carry along a field that
// the caller set, which is a control.
func TestTransportRedirects(t *testing.T) {
	var seen http.Header
	to := map[string]string{} // where a path leads; another one is a target
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if target := to[r.URL.Path]; target != "" {
			http.Redirect(w, r, target, http.StatusTemporaryRedirect)
			return
		}
		seen = r.Header
	})
	ours, other := httptest.NewServer(h), httptest.NewServer(h)
	defer ours.Close()
	defer other.Close()
	to["/away"], to["/here"], to["/out"], to["/back"] = other.URL+"/x", "/x", other.URL+"/back", ours.URL+"/x"
	to["/tour"], to["/on"] = other.URL+"/on", ours.URL+"/here"
	fenced := &http.Client{Transport: newTransport(nil, []string{ours.URL}, nil)}
	both := &http.Client{Transport: newTransport(nil, []string{ours.URL, other.URL}, nil)}
	for _, c := range []struct {
		name, url string
		client    *http.Client
		manual    bool
		want      string
	}{
		{"to another origin", ours.URL + "/away", fenced, false, ""},
		{"to another origin, header set by hand", ours.URL + "/away", fenced, true, ""},
		{"control: header set by hand, plain client", ours.URL + "/away", http.DefaultClient, true, "11"},
		{"control: the same origin", ours.URL + "/here", fenced, false, "11"},
		{"from another origin", other.URL + "/back", fenced, false, ""},
		{"out to another origin and back", ours.URL + "/out", fenced, false, ""},
		{"out, back, and on within the origin", ours.URL + "/tour", fenced, false, ""},
		{"control: that origin is configured", ours.URL + "/out", both, false, "11"},
	} {
		t.Run(c.name, func(t *testing.T) {
			seen = nil
			r := guard.Must(http.NewRequestWithContext(guard.WithClaim(t.Context(), held), "POST", c.url, strings.NewReader("x")))
			if c.manual {
				r.Header.Set(TokenHeader, "11")
			}
			resp, err := c.client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			if seen == nil || seen.Get(TokenHeader) != c.want {
				t.Errorf("the target saw %v, want the token %q", seen, c.want)
			}
		})
	}
}

// A redirect whose response does not say which server sent it is not trusted.
func TestTransportRedirectedByNobodyKnown(t *testing.T) {
	var got http.Header
	transport := newTransport(roundTrip(func(r *http.Request) (*http.Response, error) {
		got = r.Header
		return &http.Response{StatusCode: 200, Body: http.NoBody}, nil
	}), []string{"https://ledger.test"}, nil)
	for _, answer := range []*http.Response{nil, {}} {
		r := httptest.NewRequestWithContext(guard.WithClaim(t.Context(), held), "POST", "https://ledger.test/x", nil)
		r.Response = answer
		resp, err := transport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if sent := got.Get(TokenHeader) != ""; sent != (answer == nil) {
			t.Errorf("redirected by %v: token sent %v", answer, sent)
		}
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestOriginsAreValidated(t *testing.T) {
	for _, s := range []string{
		"", "ledger.internal", "ledger.internal:8443", "//ledger.internal", "ftp://a", "https://", "https:///x", "https://a/x", "https://a?",
		"https://a?x=y", "https://a#", "https://a#x", "https://u@a", "https://u:p@a", "https://*.internal", "https://*", "*",
		"https://a:0", "https://a:65536", "https://a:x", "https://a:-1", "https://\u00e4.test", "https://a b", "https://a:1:2", "https://[::1", "\x00",
	} {
		if o, err := parseOrigin(s); err == nil {
			t.Errorf("%q: accepted as %+v", s, o)
		}
	}
	for s, want := range map[string]origin{
		"https://A.test":       {"https", "a.test", 443},
		"http://a.test/":       {"http", "a.test", 80},
		"https://a.test:8443":  {"https", "a.test", 8443},
		"HTTP://[::1]:8080":    {"http", "::1", 8080},
		"https://127.0.0.1:1/": {"https", "127.0.0.1", 1},
		"https://a.test:":      {"https", "a.test", 443},
	} {
		if o, err := parseOrigin(s); err != nil || o != want {
			t.Errorf("%q: %+v, %v", s, o, err)
		}
	}
}

// TestTransportSendsTheProof: with the claim, to configured origins only. A request
// whose proof cannot be had is not sent. examples/lockserver has a server refuse
// what is forged.
func TestTransportSendsTheProof(t *testing.T) {
	failed := errors.New("no signer")
	ctx := guard.WithClaim(t.Context(), held)
	for _, c := range []struct {
		target, give string
		err          error
		want         []string
	}{
		{"http://ours.test/", "p", nil, []string{"p"}},
		{"http://ours.test/", "", nil, nil},
		{"http://ours.test/", "p", failed, nil},
		{"http://other.test/", "p", nil, nil},
	} {
		base := &tape{}
		tr := newTransport(base, []string{"http://ours.test"}, &TransportOptions{Proof: func(_ context.Context, claim guard.Claim) (string, error) {
			if claim != held {
				t.Errorf("a proof of %+v", claim)
			}
			return c.give, c.err
		}})
		r, b := outgoing(t, ctx, c.target)
		r.Header.Set(proof.Header, "somebody's")
		_, err := tr.RoundTrip(r)
		if !errors.Is(err, c.err) || (len(base.sent) == 1) != (c.err == nil) || !b.closed.Load() {
			t.Errorf("%+v: %v, %d sent", c, err, len(base.sent))
		}
		if err == nil && !slices.Equal(base.sent[0].Header[proof.Header], c.want) {
			t.Errorf("%+v: %v", c, base.sent[0].Header)
		}
	}
}
