package httpfence

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
)

// whole sends a whole claim for a resource to /acct/acme/close.
func (s *service) whole(t testing.TB, resource, token, lease string, more ...string) answer {
	t.Helper()
	return do(t, "POST", s.URL+goodPath, append([]string{TokenHeader, token, LeaseHeader, lease, ResourceHeader, resource}, more...)...)
}

// TestMisdirected: a claim for another resource is refused with both names and
// raises nothing. The control, which does not require the name, raises the mark
// of the wrong resource, and its true holder becomes stale.
func TestMisdirected(t *testing.T) {
	for surface, guarded := range guardedBy {
		for _, asked := range []bool{true, false} {
			t.Run(fmt.Sprint(surface, asked), func(t *testing.T) {
				s := strictAt(t, guarded, &Options{InsecureAnyResource: !asked, Logger: silent})
				store := s.store
				if _, err := store.Store.Admit(t.Context(), guard.Claim{Resource: "acme", Token: 10, LeaseID: "true"}); err != nil {
					t.Fatal(err)
				}
				if !asked { // the claim for "other" is sent to acme's route without its name
					a := do(t, "POST", s.URL+goodPath, TokenHeader, "2000", LeaseHeader, "stray")
					if m := store.mark(t, "acme"); a.status >= 300 || surface != "Check" && m.Token != 2000 {
						t.Errorf("control: %d, mark %+v", a.status, m)
					}
				}
				a := s.whole(t, "other", "3000", "stray")
				if a.status != 400 || a.reason() != "misdirected" || a.problem["claimed"] != "other" || a.problem["guarded"] != "acme" || a.header.Get(ReasonHeader) != "misdirected" {
					t.Errorf("%d %s", a.status, a.body)
				}
				if m := store.mark(t, "acme"); m.Token == 3000 || asked && m.Token != 10 {
					t.Errorf("mark %+v", m)
				}
				if m := store.mark(t, "other"); m != (guard.Mark{}) {
					t.Errorf("the other's mark: %+v", m)
				}
				if asked {
					if a := s.whole(t, "acme", "10", "true"); a.status >= 300 {
						t.Errorf("the true holder: %d %s", a.status, a.body)
					}
				}
			})
		}
	}
}

// TestResourceField: exactly one field, and every percent-encoding of the same
// bytes is one name.
func TestResourceField(t *testing.T) {
	const name = "t:a,b%\u00e4"
	store := newStore()
	fence := guard.Must(New(store, func(*http.Request) (string, error) { return name, nil }, nil))
	for _, c := range []struct {
		lines []string
		want  error
	}{
		{[]string{Encode(name)}, nil},
		{[]string{"t:a%2Cb%25%C3%A4"}, nil},
		{[]string{"t%3Aa%2Cb%25%C3%A4"}, nil},
		{[]string{"t%3aa%2cb%25%c3%a4"}, nil},
		{[]string{"%74:%61%2Cb%25%C3%A4"}, nil},
		{nil, guard.ErrMissing},
		{[]string{""}, guard.ErrInvalid},
		{[]string{Encode(name), Encode(name)}, guard.ErrInvalid},
		{[]string{Encode(name), "other"}, guard.ErrInvalid},
		{[]string{"t:a,b%25%C3%A4"}, guard.ErrInvalid},              // a comma: two lines in one
		{[]string{"t:a%2Cb%25%C3%A4, t:a%2Cb"}, guard.ErrInvalid},   //
		{[]string{"t:a%2Cb%\u00e4"}, guard.ErrInvalid},              // not encoded
		{[]string{"t:a%2Cb%25\u00e4"}, guard.ErrInvalid},            //
		{[]string{"t:a%2Cb%2"}, guard.ErrInvalid},                   // cut off
		{[]string{"t:a%2Cb%"}, guard.ErrInvalid},                    //
		{[]string{"t:a%2Cb%zz"}, guard.ErrInvalid},                  //
		{[]string{"t:a%0A"}, guard.ErrInvalid},                      // no valid name
		{[]string{"t:%ff"}, guard.ErrInvalid},                       //
		{[]string{strings.Repeat("x", 513)}, guard.ErrInvalid},      //
		{[]string{strings.Repeat("%", 4000)}, guard.ErrInvalid},     //
		{[]string{"t:a%252Cb%25%C3%A4"}, guard.ErrMisdirected},      // encoded twice is another name
		{[]string{"t:a%2Cb%2525%C3%A4"}, guard.ErrMisdirected},      //
		{[]string{"T:a%2Cb%25%C3%A4"}, guard.ErrMisdirected},        // bytes, not letters
		{[]string{"t:a%2Cb%25a%CC%88"}, guard.ErrMisdirected},       // the other Unicode form
		{[]string{"t:a%2Cb%25%C3%A4x"}, guard.ErrMisdirected},       // longer
		{[]string{"t:a%2Cb"}, guard.ErrMisdirected},                 // shorter
		{[]string{"t:a+b%25%C3%A4"}, guard.ErrMisdirected},          // a plus is a plus
		{[]string{"tenant_12:billing-close"}, guard.ErrMisdirected}, //
	} {
		r := newRequest("", "5", "l")
		if c.lines != nil {
			r.Header[ResourceHeader] = c.lines
		}
		if _, err := fence.Check(r); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) || c.want == guard.ErrInvalid && errors.Is(err, guard.ErrMisdirected) {
			t.Errorf("%.80q: %v, want %v", c.lines, err, c.want)
		}
	}
}

// FuzzResourceField: what was encoded is decoded to the same name, also by
// net/url, and what is decoded is a valid name.
func FuzzResourceField(f *testing.F) {
	for _, seed := range []string{"a", "a:b", "100%", "\u00e4,\"", "%3A", "a b"} {
		f.Add(seed, Encode(seed))
	}
	f.Fuzz(func(t *testing.T, name, value string) {
		if guard.ValidateResource(name) == nil {
			if back, ok := decode(Encode(name), guard.MaxResourceLen, guard.ValidateResource); !ok || back != name {
				t.Errorf("%q: %q, %v", name, back, ok)
			}
		}
		if decoded, ok := decode(value, guard.MaxResourceLen, guard.ValidateResource); ok {
			again, err := url.PathUnescape(value)
			if err != nil || again != decoded || guard.ValidateResource(decoded) != nil || strings.ContainsAny(value, ", \"") {
				t.Errorf("%q is decoded to %q", value, decoded)
			}
		}
	})
}

// TestStrippedFields: a client can make a proxy drop a field. Without the lease ID
// every holder is the same, so the claim is refused; the control, TokenOnly, admits
// two leases under one token, and then the true holder is the conflict. Without
// the token it is refused in any case.
func TestStrippedFields(t *testing.T) {
	for _, tokenOnly := range []bool{false, true} {
		s := newStrict(t, &Options{TokenOnly: tokenOnly, Logger: silent})
		target := guard.Must(url.Parse(s.URL))
		proxy := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(p *httputil.ProxyRequest) { p.SetURL(target) }})
		defer proxy.Close()
		through := func(token, lease, dropped string) answer {
			return do(t, "POST", proxy.URL+goodPath, TokenHeader, token, LeaseHeader, lease, ResourceHeader, "acme", "Connection", dropped)
		}
		one, two, holder := through("11", "a", LeaseHeader), through("11", "b", LeaseHeader), through("11", "b", "X-Other")
		if !tokenOnly && (one.status != 428 || two.status != 428 || holder.status != 200) {
			t.Errorf("%d, %d, holder %d", one.status, two.status, holder.status)
		}
		if tokenOnly && (one.status != 200 || two.status != 200 || holder.reason() != "conflict") {
			t.Errorf("control: %d, %d, holder %d %s", one.status, two.status, holder.status, holder.body)
		}
		if a := through("12", "c", TokenHeader); a.status != 428 || a.reason() != "missing" || s.store.mark(t, "acme").Token != 11 {
			t.Errorf("no token: %d %s", a.status, a.body)
		}
	}
}

// TestMistakesAreErrors: mistakes in the program are reported when it starts.
func TestMistakesAreErrors(t *testing.T) {
	store := newStore()
	named := guard.Must(guard.NewTemplate("{tenant}:{id}"))
	for field, err := range map[string]error{
		"store":                      second(New(nil, byPath, nil)),
		"ResourceFunc":               second(New(store, nil, nil)),
		"Options.UnguardedMethods":   second(New(store, byPath, &Options{UnguardedMethods: []string{"GET "}})),
		"Options.MaxWait":            second(New(store, byPath, &Options{MaxWait: -1})),
		"Options.MaxBody":            second(New(store, byPath, &Options{MaxBody: -1})),
		"Transactor":                 second(NewTx(nil, byPath, nil)),
		"origins":                    second(NewTransport(nil, nil, nil)),
		"origin":                     second(NewTransport(nil, []string{"ledger"}, nil)),
		"template":                   second(Named(nil, nil)),
		`template variable "id"`:     second(Named(named, Bindings{"tenant": byPath})),
		`template variable "x"`:      second(Named(named, Bindings{"tenant": byPath, "id": byPath, "x": byPath})),
		`template variable "tenant"`: second(Named(named, Bindings{"tenant": nil, "id": byPath})),
	} {
		if !errors.Is(err, guard.ErrInvalid) || !strings.Contains(err.Error(), "invalid "+field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := New(store, byPath, &Options{UnguardedMethods: []string{""}}); err == nil {
		t.Error("the empty method is accepted")
	}
}

func second[T any](_ T, err error) error { return err }

// TestVerify: a made-up token is refused before anything is raised, for every
// kind of guard; the control accepts it, and locks all others out.
func TestVerify(t *testing.T) {
	const madeUp = "9223372036854775806"
	for _, verified := range []bool{true, false} {
		var seen guard.Claim
		opts := &Options{Logger: silent}
		if verified {
			opts.Verify = func(claim guard.Claim, r *http.Request) error {
				if seen = claim; r.Header.Get("X-Proof") != claim.Token.String() {
					return guard.Invalid("token", "", "was not issued")
				}
				return nil
			}
		}
		s := newStrict(t, opts)
		a := s.whole(t, "acme", madeUp, "x")
		good := s.whole(t, "acme", "11", "a", "X-Proof", "11")
		if verified && (a.status != 400 || a.reason() != "invalid" || good.status != 200 || seen != (guard.Claim{Resource: "acme", Token: 11, LeaseID: "a"})) {
			t.Errorf("%d, %d, asked about %+v", a.status, good.status, seen)
		}
		if !verified && (a.status != 200 || good.reason() != "stale") {
			t.Errorf("control: %d, %d", a.status, good.status)
		}
	}
	for err, want := range map[error]string{
		guard.ErrUnavailable: "unavailable", io.EOF: "other", guard.ErrMarkAhead: "mark_ahead", guard.ErrNotFound: "not_found",
		// What a fence elsewhere said is not about this claim.
		&guard.RejectedError{Reason: guard.ReasonStale, Claim: guard.Claim{Resource: "other", Token: 5}}: "other",
		&guard.ElsewhereError{Err: guard.ErrInvalid}:                                                     "other", &guard.ElsewhereError{Err: guard.ErrStale}: "other",
		&guard.MisdirectedError{Claimed: "acme", Guarded: "other"}: "other", &guard.MisdirectedError{Claimed: "other", Guarded: "acme"}: "misdirected",
	} {
		s := newStrict(t, &Options{Verify: func(guard.Claim, *http.Request) error { return err }, Logger: silent})
		if a := s.whole(t, "acme", "5", "a"); a.reason() != want || s.store.calls() != 0 {
			t.Errorf("%v: %d %s", err, a.status, a.body)
		}
	}
}

// TestLog: each refusal is one record, with its cause, at slog's default logger
// if no other was given, and without what was in the fields.
func TestLog(t *testing.T) {
	var log bytes.Buffer
	testkit.CaptureDefault(t)
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	const secret = "eyJhbGciOi"
	broken := guard.Unavailable("admit", guard.Claim{}, errors.New("dial tcp 10.0.0.7:5432: connection refused"))
	for surface, guarded := range guardedBy {
		s := strictAt(t, guarded, nil)
		for _, header := range [][]string{
			{TokenHeader, "Bearer " + secret}, {TokenHeader, "5", LeaseHeader, secret + strings.Repeat("x", 128)},
			{TokenHeader, "5", LeaseHeader, "a", ResourceHeader, secret + ","}, {TokenHeader, secret, TokenHeader, "5"},
		} {
			log.Reset()
			a := do(t, "POST", s.URL+goodPath, header...)
			if text := log.String(); a.status != 400 || strings.Count(text, "fencing_rejected") != 1 || !strings.Contains(text, "reason=invalid") || strings.Contains(text, secret) || strings.Contains(a.body, secret) {
				t.Errorf("%s, %.40q: %d %s", surface, header, a.status, text)
			}
		}
		log.Reset()
		s.store.failWith(broken)
		a := s.whole(t, "acme", "5", "a")
		if text := log.String(); a.status != 503 || strings.Count(text, "fencing_failed") != 1 || strings.Count(text, "fencing_") != 1 || !strings.Contains(text, "connection refused") {
			t.Errorf("%s: %d %s", surface, a.status, text)
		}
	}
	log.Reset()
	s := newStrict(t, &Options{Logger: silent})
	if a := s.whole(t, "acme", "x", "a"); a.status != 400 || log.Len() != 0 {
		t.Errorf("no logger: %d %s", a.status, &log)
	}
}

// TestReasonWithoutBody: HEAD has no body and a proxy may compress one; the
// reason is in the header. The control strips that too.
func TestReasonWithoutBody(t *testing.T) {
	s := newStrict(t, &Options{Logger: silent, GuardAllMethods: true})
	s.whole(t, "acme", "11", "b")
	req := guard.Must(http.NewRequestWithContext(guard.WithClaim(t.Context(), guard.Claim{Resource: "acme", Token: 10, LeaseID: "a"}), "HEAD", s.URL+goodPath, nil))
	resp, err := newTransport(nil, []string{s.URL}, nil).RoundTrip(req)
	testkit.Must(t, err)
	_ = resp.Body.Close()
	if err := ErrorFrom(resp); !errors.Is(err, guard.ErrStale) {
		t.Errorf("HEAD: %v", err)
	}
	resp.Header.Set("Content-Type", problemType)
	for name, body := range map[string]io.Reader{"gzip": strings.NewReader("\x1f\x8b\x08"), "breaks off": io.MultiReader(strings.NewReader("{"), iotest.ErrReader(io.ErrUnexpectedEOF))} {
		resp.Body = io.NopCloser(body)
		if err := ErrorFrom(resp); !errors.Is(err, guard.ErrStale) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, lines := range map[string][]string{"none": nil, "empty": {""}, "two": {"stale", "spent"}} {
		resp.Header[ReasonHeader], resp.Body = lines, http.NoBody
		if err := ErrorFrom(resp); err != nil {
			t.Errorf("control, %s: %v", name, err)
		}
	}
	resp.Header[ReasonHeader] = []string{"from the future"}
	if err := ErrorFrom(resp); guard.ReasonOf(err) != guard.ReasonOther || err == nil {
		t.Errorf("unknown: %v", err)
	}
}

// TestTransportIsNotReplayed: http.Transport repeats a POST that carries an
// idempotency key when a reused connection ends before the response. Under a
// Transport it does not; the control, without one, arrives twice.
func TestTransportIsNotReplayed(t *testing.T) {
	for _, name := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		for _, ours := range []bool{true, false} {
			var arrived atomic.Int64
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/warm" {
					return
				}
				n := arrived.Add(1)
				if r.Header.Get(name) != "k" {
					t.Errorf("%s is %q", name, r.Header[name])
				}
				if n == 1 { // the answer is lost with the connection
					conn, _, _ := http.NewResponseController(w).Hijack()
					_ = conn.Close()
				}
			}))
			base := &http.Transport{}
			client := &http.Client{Transport: http.RoundTripper(base)}
			if ours {
				client.Transport = newTransport(base, []string{server.URL}, nil)
			}
			send := func(path string) error {
				ctx := guard.WithClaim(context.Background(), guard.Claim{Resource: "acme", Token: 7, LeaseID: "l"})
				req, err := http.NewRequestWithContext(ctx, "POST", server.URL+path, strings.NewReader("x"))
				if err != nil {
					return err
				}
				req.Header.Set(name, "k")
				resp, err := client.Do(req)
				if err != nil {
					return err
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				return resp.Body.Close()
			}
			testkit.Must(t, send("/warm"))
			err := send("/write")
			if ours && (arrived.Load() != 1 || err == nil) || !ours && arrived.Load() != 2 {
				t.Errorf("%s, Transport %v: arrived %d times, %v", name, ours, arrived.Load(), err)
			}
			base.CloseIdleConnections()
			server.Close()
		}
	}
}

func newRequest(resource, token, lease string) *http.Request {
	r := httptest.NewRequest("POST", "/"+resource, nil)
	if token != "" {
		r.Header.Set(TokenHeader, token)
	}
	if lease != "" {
		r.Header.Set(LeaseHeader, lease)
	}
	return r
}

// byPath takes the whole path as the resource.
func byPath(r *http.Request) (string, error) { return strings.TrimPrefix(r.URL.Path, "/"), nil }

func TestCheckWritesNothing(t *testing.T) {
	store := newStore()
	fence := newFence(store, byPath, nil)
	claim, err := fence.Check(newRequest("r", "5", "a"))
	if want := (guard.Claim{Resource: "r", Token: 5, LeaseID: "a"}); err != nil || claim != want {
		t.Errorf("%+v, %v", claim, err)
	}
	if store.admits.Load() != 0 || store.mark(t, "r") != (guard.Mark{}) {
		t.Error("Check raised the mark")
	}
	if _, err := store.Admit(t.Context(), guard.Claim{Resource: "r", Token: 6, LeaseID: "b"}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		token, lease string
		want         error
	}{
		{"6", "b", nil}, {"7", "", nil}, {"5", "a", guard.ErrStale}, {"6", "a", guard.ErrConflict},
		{"", "a", guard.ErrMissing}, {"x", "", guard.ErrInvalid},
	} {
		claim, err := fence.Check(newRequest("r", c.token, c.lease))
		if !errors.Is(err, c.want) || (err == nil) != (claim != guard.Claim{}) {
			t.Errorf("%+v: %+v, %v", c, claim, err)
		}
	}
	// Check ignores the method: it was called explicitly.
	r := newRequest("r", "5", "a")
	r.Method = "GET"
	if _, err := fence.Check(r); !errors.Is(err, guard.ErrStale) {
		t.Errorf("GET: %v", err)
	}
}

// TestResourceIsAskedAfterTheHeader: a request without a token causes no
// lookup.
func TestResourceIsAskedAfterTheHeader(t *testing.T) {
	asked := 0
	fence := newFence(newStore(), func(*http.Request) (string, error) { asked++; return "r", nil }, nil)
	for _, token := range []string{"", "0", "5"} {
		_, _ = fence.Check(newRequest("", token, ""))
	}
	if asked != 1 {
		t.Errorf("asked %d times", asked)
	}
}

func TestHook(t *testing.T) {
	cases := map[string]struct {
		hook   func(w http.ResponseWriter)
		status int
		body   string // "" is the default response
	}{
		"responds":          {func(w http.ResponseWriter) { w.WriteHeader(418); _, _ = io.WriteString(w, "mine") }, 418, "mine"},
		"writes only":       {func(w http.ResponseWriter) { _, _ = io.WriteString(w, "mine") }, 200, "mine"},
		"flushes":           {func(w http.ResponseWriter) { w.WriteHeader(418); _ = http.NewResponseController(w).Flush() }, 418, "-"},
		"only counts":       {func(http.ResponseWriter) {}, 412, ""},
		"sets a header":     {func(w http.ResponseWriter) { w.Header().Set("X-Trace", "1") }, 412, ""},
		"sends early hints": {func(w http.ResponseWriter) { w.WriteHeader(103) }, 412, ""},
		"flush responds":    {func(w http.ResponseWriter) { _ = http.NewResponseController(w).Flush() }, 200, "-"},
		"hijacks":           {func(w http.ResponseWriter) { _, _, _ = http.NewResponseController(w).Hijack() }, 412, ""},
		"writes too much":   {func(w http.ResponseWriter) { _, _ = w.Write(make([]byte, DefaultMaxBody+1)) }, 412, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var got *Rejection
			s := newService(t, &Options{OnReject: func(w http.ResponseWriter, r *http.Request, rej *Rejection) {
				got = rej
				c.hook(w)
			}})
			s.post(t, "acme", "11", "b")
			a := s.post(t, "acme", "10", "a")
			if a.status != c.status || (c.body == "") != (a.reason() == "stale") || (c.body == "mine" && a.body != "mine") {
				t.Errorf("%d %q", a.status, a.body)
			}
			if name == "sets a header" && a.header.Get("X-Trace") != "1" {
				t.Error("the hook's header is lost")
			}
			want := guard.Claim{Resource: "acme", Token: 10, LeaseID: "a"}
			if got.Reason != guard.ReasonStale || got.Status != 412 || got.Claim != want || !errors.Is(got.Err, guard.ErrStale) || got.Type != typeURI("stale") {
				t.Errorf("%+v", got)
			}
		})
	}
}
