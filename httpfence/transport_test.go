package httpfence

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/guard/proof"
	"github.com/fencepost-go/fencepost/internal/testkit"
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
			testkit.Must(t, err)
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
		testkit.Must(t, err)
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

// refuser is an HTTP/2 server that reads each request to its end and then answers
// the first with one frame and the others with INTERNAL_ERROR, after which nobody
// repeats. The frames are those of RFC 9113, section 6.
func refuser(t *testing.T, first func(stream []byte) []byte) (url string, requests *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	requests = new(atomic.Int64)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go refuse(conn, requests, first)
		}
	}()
	return "http://" + l.Addr().String(), requests
}

func refuse(conn net.Conn, requests *atomic.Int64, first func([]byte) []byte) {
	defer func() { _ = conn.Close() }()
	const data, headers, settings, endStream = 0x0, 0x1, 0x4, 0x1
	preface := make([]byte, len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
	if _, err := io.ReadFull(conn, preface); err != nil {
		return
	}
	_, _ = conn.Write([]byte{0, 0, 0, settings, 0, 0, 0, 0, 0})
	for {
		var head [9]byte // length, type, flags, stream
		if _, err := io.ReadFull(conn, head[:]); err != nil {
			return
		}
		length := int64(head[0])<<16 | int64(binary.BigEndian.Uint16(head[1:]))
		if _, err := io.CopyN(io.Discard, conn, length); err != nil {
			return
		}
		if kind := head[3]; (kind == data || kind == headers) && head[4]&endStream != 0 {
			if requests.Add(1) == 1 {
				_, _ = conn.Write(first(head[5:]))
			} else {
				_, _ = conn.Write(resetBy(2)(head[5:]))
			}
		}
	}
}

// resetBy is RST_STREAM with an error code: 1 PROTOCOL_ERROR, 2 INTERNAL_ERROR,
// 7 REFUSED_STREAM.
func resetBy(code byte) func(stream []byte) []byte {
	return func(stream []byte) []byte {
		return append(append([]byte{0, 0, 4, 0x3, 0}, stream...), 0, 0, 0, code)
	}
}

// goAway is GOAWAY with NO_ERROR, which says that no stream above last was or will
// be processed.
func goAway(last byte) func([]byte) []byte {
	return func([]byte) []byte {
		return []byte{0, 0, 8, 0x7, 0, 0, 0, 0, 0, 0, 0, 0, last, 0, 0, 0, 0}
	}
}

func overHTTP2(t *testing.T) *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	base := &http.Transport{Protocols: protocols}
	t.Cleanup(base.CloseIdleConnections)
	return base
}

// Over HTTP/2 net/http repeats a request that was reset with PROTOCOL_ERROR,
// refused or told to go away, whatever its method, if it can send the body again.
// Behind Transport it sends a write once, and a GET as it always does, which is
// the control. The error of a write says whether it was certainly not handled.
func TestTransportSendsAWriteOnceOverHTTP2(t *testing.T) {
	for name, c := range map[string]struct {
		frame func([]byte) []byte
		want  error
	}{
		"PROTOCOL_ERROR": {resetBy(1), guard.ErrOutcomeUnknown}, "INTERNAL_ERROR": {resetBy(2), guard.ErrOutcomeUnknown},
		"REFUSED_STREAM": {resetBy(7), guard.ErrUnavailable}, "GOAWAY": {goAway(0), guard.ErrUnavailable},
	} {
		for _, method := range []string{"POST", "PUT", "DELETE", "GET"} {
			for _, content := range []string{"12", ""} {
				if method == "GET" && content != "" {
					continue
				}
				url, requests := refuser(t, c.frame)
				r := guard.Must(http.NewRequestWithContext(guard.WithClaim(t.Context(), held), method, url, strings.NewReader(content)))
				_, err := newTransport(overHTTP2(t), []string{url}, nil).RoundTrip(r)
				if err == nil || method != "GET" && (!errors.Is(err, c.want) || guard.ReasonOf(err) != guard.ReasonOf(c.want)) {
					t.Errorf("%s, %s with the body %q: %v", name, method, content, err)
				}
				if n := requests.Load(); method != "GET" && n != 1 || method == "GET" && name != "INTERNAL_ERROR" && n < 2 {
					t.Errorf("%s: one %s with the body %q was sent %d times", name, method, content, n)
				}
				if r.GetBody == nil || r.TransferEncoding != nil || len(r.Header) > 0 {
					t.Errorf("%s: the caller's request was changed", method)
				}
			}
		}
	}
}

// What is known without HTTP/2: a write for which there was no connection was not
// sent, if base is known to have tried nothing else; a connection that breaks says
// nothing. net/url still finds out that an error is a timeout.
func TestTransportSaysWhatWasNotSent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	nobody := "http://" + l.Addr().String()
	_ = l.Close()
	arrived := make(chan struct{}, 1)
	slow := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // else the server does not see that the client has left
		arrived <- struct{}{}
		<-r.Context().Done()
	}))
	defer slow.Close()
	breaks := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	defer breaks.Close()
	direct := &http.Transport{}
	defer direct.CloseIdleConnections()
	for name, c := range map[string]struct {
		base    http.RoundTripper
		url     string
		timeout bool
		want    error
	}{
		"no connection": {direct, nobody, false, guard.ErrUnavailable},
		"no connection behind another RoundTripper":  {struct{ http.RoundTripper }{direct}, nobody, false, guard.ErrOutcomeUnknown},
		"a connection that breaks":                   {direct, breaks.URL, false, guard.ErrOutcomeUnknown},
		"a timeout":                                  {direct, slow.URL, true, guard.ErrOutcomeUnknown},
		"an error of its own, which lies about HTTP": {roundTrip(func(*http.Request) (*http.Response, error) { return nil, io.EOF }), slow.URL, false, guard.ErrOutcomeUnknown},
	} {
		ctx := guard.WithClaim(t.Context(), held)
		if c.timeout {
			var end context.CancelCauseFunc
			ctx, end = context.WithCancelCause(ctx)
			go func() { <-arrived; end(context.DeadlineExceeded) }() // the time is over when all was sent
		}
		r := guard.Must(http.NewRequestWithContext(ctx, "POST", c.url, strings.NewReader("12")))
		_, err := (&http.Client{Transport: newTransport(c.base, []string{c.url}, nil)}).Do(r)
		var failed *guard.FailedError
		if !errors.Is(err, c.want) || !errors.As(err, &failed) || failed.Claim != held || !strings.HasPrefix(failed.Op, "POST 127.0.0.1") {
			t.Errorf("%s: %v", name, err)
		}
		var outer *url.Error
		if !errors.As(err, &outer) || outer.Timeout() != c.timeout || c.timeout != errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %#v", name, err)
		}
	}
}

// Over HTTP/1.1 a body is framed as without Transport. An empty one is sent in
// chunks, or with a DELETE without a length, because base must not see that it is
// empty.
func TestTransportFramesOverHTTP1(t *testing.T) {
	var length int64
	var encoding []string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { length, encoding = r.ContentLength, r.TransferEncoding }))
	defer server.Close()
	for _, method := range []string{"POST", "PUT", "PATCH", "DELETE"} {
		for _, body := range []string{"", "12"} {
			r := guard.Must(http.NewRequestWithContext(guard.WithClaim(t.Context(), held), method, server.URL, strings.NewReader(body)))
			resp, err := newTransport(server.Client().Transport, []string{server.URL}, nil).RoundTrip(r)
			if err != nil {
				t.Fatalf("%s: %v", method, err)
			}
			_ = resp.Body.Close()
			want, chunked := int64(len(body)), body == "" && method != "DELETE"
			if chunked {
				want = -1
			}
			if length != want || slices.Contains(encoding, "chunked") != chunked {
				t.Errorf("%s with the body %q: length %d, %q", method, body, length, encoding)
			}
		}
	}
}

// TestTransportSendsNoBodyOfALength: a request that says that it has a body and has
// none is refused by net/http, and nothing is sent; [http.NoBody] has the length 0,
// whatever the request says.
func TestTransportSendsNoBodyOfALength(t *testing.T) {
	var served atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { served.Add(1) }))
	defer server.Close()
	for _, body := range []io.ReadCloser{nil, http.NoBody} {
		r := guard.Must(http.NewRequestWithContext(guard.WithClaim(t.Context(), held), "POST", server.URL, nil))
		r.Body, r.ContentLength = body, 5
		before := served.Load()
		resp, err := newTransport(server.Client().Transport, []string{server.URL}, nil).RoundTrip(r)
		if err == nil {
			resp.Body.Close()
		}
		if (err == nil) != (body != nil) || served.Load()-before != map[bool]int64{true: 1}[body != nil] {
			t.Errorf("body %v: %v, %d requests were served", body, err, served.Load()-before)
		}
	}
}
