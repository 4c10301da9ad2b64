package httpfence

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
)

const goodPath = "/acct/acme/close"

// badInputs is sent byte by byte over a socket. reason is the problem type;
// "" says that net/http refuses before the middleware sees the request.
var badInputs = func() []struct {
	name, request string
	status        int
	reason        string
} {
	type row = struct {
		name, request string
		status        int
		reason        string
	}
	var rows []row
	add := func(name string, status int, reason string, path string, lines ...string) {
		rows = append(rows, row{name, rawPost(path, lines...), status, reason})
	}
	missing := func(name string, lines ...string) { add(name, 428, "missing", goodPath, lines...) }
	invalid := func(name string, lines ...string) { add(name, 400, "invalid", goodPath, lines...) }
	protocol := func(name string, status int, lines ...string) { add(name, status, "", goodPath, lines...) }
	resource := func(name, path string) { add(name, 400, "invalid", path, "X-Fencing-Token: 5") }

	// No token.
	missing("no field at all")
	missing("lease only", "X-Fencing-Lease: a")
	missing("underscores", "X_Fencing_Token: 5")
	missing("no dashes", "XFencingToken: 5")
	missing("prefix of the name", "X-Fencing-Toke: 5")
	missing("longer name", "X-Fencing-Token2: 5")
	missing("without X", "Fencing-Token: 5")
	missing("in a cookie", "Cookie: X-Fencing-Token=5")
	missing("as If-Match", `If-Match: "5"`)
	missing("as a bearer token", "Authorization: Bearer 5")
	add("in the query", 428, "missing", goodPath+"?X-Fencing-Token=5")
	rows = append(rows, row{"in a trailer", "POST " + goodPath + " HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n" +
		"Transfer-Encoding: chunked\r\nTrailer: X-Fencing-Token\r\n\r\n0\r\nX-Fencing-Token: 5\r\n\r\n", 428, "missing"})
	rows = append(rows, row{"in the body", "POST " + goodPath + " HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n" +
		"Content-Length: 18\r\n\r\nX-Fencing-Token: 5", 428, "missing"})
	for _, method := range []string{"PUT", "PATCH", "DELETE", "CONNECT"} {
		rows = append(rows, row{"method " + method, strings.Replace(rawPost(goodPath), "POST", method, 1), 428, "missing"})
	}
	for _, method := range []string{"get", "PURGE"} { // chi does not know them
		rows = append(rows, row{"method " + method, strings.Replace(rawPost(goodPath), "POST", method, 1), 405, ""})
	}

	// A malformed token.
	for name, value := range map[string]string{
		"empty": "", "only spaces": "   ", "tab": "\t",
		"zero": "0", "negative zero": "-0", "negative": "-5", "plus": "+5", "leading zero": "05", "many zeros": "0000000005",
		"hexadecimal": "0x5", "octal": "0o5", "binary": "0b101", "underscore in number": "1_000", "thousands": "1,000",
		"decimal point": "5.0", "exponent": "5e0", "inner space": "5 5", "inner tab": "5\t5",
		"comma-joined, same": "5, 5", "comma-joined": "5,6", "trailing comma": "5,", "leading comma": ",5", "semicolon": "5;q=1",
		"quoted": `"5"`, "single quotes": "'5'", "brackets": "[5]", "word": "five", "null": "null", "infinity": "Inf", "nan": "NaN",
		"20 digits": "18446744073709551616", "20 digits of one": "11111111111111111111",
		"MaxInt64":   "9223372036854775807",
		"MaxInt64+1": "9223372036854775808", "19 nines": "9999999999999999999", "wraps to 5": "18446744073709551621",
		"Arabic-Indic digit": "\u0665", "full-width digit": "\uff15", "Devanagari digit": "\u096b", "superscript": "\u2075",
		"no-break space": "\u00a05", "zero-width space": "5\u200b", "minus sign U+2212": "\u22125",
		"byte-order mark": "\ufeff5", "bytes that are not UTF-8": "5\xff", "Latin-1": "\xb2",
		"1000 digits": strings.Repeat("1", 1000), "format directive": "%s%n", "percent-encoded": "%35", "JSON": `{"token":5}`,
	} {
		invalid("token: "+name, "X-Fencing-Token: "+value)
	}
	invalid("no space, signed", "X-Fencing-Token:+5")
	invalid("obs-fold", "X-Fencing-Token: 5", " 6")
	invalid("obs-fold with a tab", "X-Fencing-Token: 5", "\t6")
	invalid("obs-fold without a value", "X-Fencing-Token: 5", " ")

	// More than one.
	invalid("two lines", "X-Fencing-Token: 5", "X-Fencing-Token: 6")
	invalid("two equal lines", "X-Fencing-Token: 5", "X-Fencing-Token: 5")
	invalid("two lines, other case", "X-Fencing-Token: 5", "x-fencing-token: 6")
	invalid("two lines, one empty", "X-Fencing-Token:", "X-Fencing-Token: 5")
	invalid("two lines apart", "X-Fencing-Token: 5", "Accept: */*", "X-FENCING-TOKEN: 5")
	invalid("a hundred lines", slices.Repeat([]string{"X-Fencing-Token: 5"}, 100)...)

	// A malformed lease ID.
	invalid("lease: empty", "X-Fencing-Token: 5", "X-Fencing-Lease:")
	invalid("lease: spaces", "X-Fencing-Token: 5", "X-Fencing-Lease:   ")
	invalid("lease: two lines", "X-Fencing-Token: 5", "X-Fencing-Lease: a", "X-Fencing-Lease: b")
	invalid("lease: two equal lines", "X-Fencing-Token: 5", "X-Fencing-Lease: a", "X-Fencing-Lease: a")
	invalid("lease: 129 bytes", "X-Fencing-Token: 5", "X-Fencing-Lease: "+strings.Repeat("a", 129))
	invalid("lease: not UTF-8", "X-Fencing-Token: 5", "X-Fencing-Lease: a\xff")
	invalid("lease: not UTF-8, encoded", "X-Fencing-Token: 5", "X-Fencing-Lease: a%ff")
	invalid("lease: control, encoded", "X-Fencing-Token: 5", "X-Fencing-Lease: a%0a")
	invalid("lease: two lines joined", "X-Fencing-Token: 5", "X-Fencing-Lease: a, a")
	invalid("lease: joined without a space", "X-Fencing-Token: 5", "X-Fencing-Lease: a,b")
	invalid("lease: folded", "X-Fencing-Token: 5", "X-Fencing-Lease: a", " b")
	invalid("lease: in Latin-1", "X-Fencing-Token: 5", "X-Fencing-Lease: \xe4")
	invalid("lease: in UTF-8", "X-Fencing-Token: 5", "X-Fencing-Lease: \u00e4")
	invalid("lease: quoted", "X-Fencing-Token: 5", `X-Fencing-Lease: "a"`)
	invalid("lease: cut escape", "X-Fencing-Token: 5", "X-Fencing-Lease: a%2")
	invalid("lease: inner tab", "X-Fencing-Token: 5", "X-Fencing-Lease: a\tb")
	invalid("lease: C1 control", "X-Fencing-Token: 5", "X-Fencing-Lease: a\u0085b")

	// What net/http refuses by itself.
	protocol("NUL in the value", 400, "X-Fencing-Token: 5\x00")
	protocol("NUL in the name", 400, "X-Fencing\x00-Token: 5")
	protocol("DEL in the value", 400, "X-Fencing-Token: 5\x7f")
	protocol("escape character", 400, "X-Fencing-Token: 5\x1b[0m")
	protocol("bare CR", 400, "X-Fencing-Token: 5\r6")
	protocol("space before the colon", 400, "X-Fencing-Token : 5")
	protocol("space in the name", 400, "X-Fencing Token: 5")
	protocol("no colon", 400, "X-Fencing-Token 5")
	protocol("empty name", 400, ": 5")
	protocol("non-ASCII name", 400, "X-Fencing-Tok\u00e9n: 5")
	protocol("first line folded", 400, " X-Fencing-Token: 5")
	// Server.MaxHeaderBytes is 1 MiB and a little more by default.
	invalid("1 MiB token", "X-Fencing-Token: "+strings.Repeat("1", 1<<20))
	missing("1 MiB name", strings.Repeat("X", 1<<20)+": 5")
	protocol("2 MiB token", 431, "X-Fencing-Token: "+strings.Repeat("1", 2<<20))
	protocol("2 MiB name", 431, strings.Repeat("X", 2<<20)+": 5")
	rows = append(rows, row{"two lengths", rawPost(goodPath, "X-Fencing-Token: 5", "Content-Length: 1"), 400, ""})

	// An invalid resource.
	resource("resource: NUL", "/acct/a%00/close")
	resource("resource: newline", "/acct/a%0Ab/close")
	resource("resource: DEL", "/acct/%7F/close")
	resource("resource: not UTF-8", "/acct/%FF/close")
	resource("resource: truncated UTF-8", "/acct/%E2%82/close")
	resource("resource: surrogate", "/acct/%ED%A0%80/close")
	resource("resource: C1 control", "/acct/%C2%85/close")
	resource("resource: 513 bytes", "/acct/"+strings.Repeat("a", 513)+"/close")
	resource("resource: 200 three-byte runes", "/acct/"+strings.Repeat("%E2%82%AC", 200)+"/close")
	add("resource: malformed escape", 400, "", "/acct/%zz/close", "X-Fencing-Token: 5")
	add("resource: cut escape", 400, "", "/acct/%4/close", "X-Fencing-Token: 5")
	return rows
}()

// guardedBy are the ways to guard a handler. The last one's response is the
// fence's own.
var guardedBy = map[string]func(*service, http.Handler) http.Handler{
	"Admit": (*service).admit,
	"InTx":  (*service).inTx,
	"Check": func(s *service, next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, err := s.fence.Check(r); err != nil {
				s.fence.Reject(w, r, err)
				return
			}
			next.ServeHTTP(w, r)
		})
	},
	"Raise": func(s *service, _ http.Handler) http.Handler {
		return http.HandlerFunc(s.fence.Raise)
	},
}

// TestBadInputNeverReachesTheHandler sends every named kind of malformed request
// to each way to guard a handler. It gets the same answer everywhere, and reaches no
// handler, store or transaction. The control is a good request, in each way that
// a token may be sent.
func TestBadInputNeverReachesTheHandler(t *testing.T) {
	for surface, guarded := range guardedBy {
		t.Run(surface, func(t *testing.T) {
			t.Parallel()
			s := newServiceAt(t, guarded, ChiParam("id"), nil)
			for _, c := range badInputs {
				if surface == "Raise" && c.reason != "" && !strings.HasPrefix(c.request, "POST") {
					c.status, c.reason = 405, ""
				}
				a := s.raw(t, c.request)
				if a.status != c.status || a.reason() != c.reason {
					t.Errorf("%s: status %d, problem %q; want %d, %q\n%s", c.name, a.status, a.reason(), c.status, c.reason, a.body)
				}
				if c.reason != "" && (a.header.Get("Cache-Control") != "no-store" || a.problem["status"] != float64(c.status)) {
					t.Errorf("%s: header %v, body %s", c.name, a.header, a.body)
				}
			}
			if s.invoked.Load() != 0 || s.store.calls() != 0 || s.store.mark(t, "acme") != (guard.Mark{}) {
				t.Errorf("%d invocations, %d calls of the store, mark %+v", s.invoked.Load(), s.store.calls(), s.store.mark(t, "acme"))
			}
			for i, lines := range [][]string{
				{"X-Fencing-Token: 5"},
				{"X-Fencing-Token:5"},
				{"X-Fencing-Token:", " 5"}, // net/http makes one line of a folded field (RFC 9112, section 5.2)
				{"x-fencing-token: \t 5 \t "},
				{"X-FENCING-TOKEN: 5"},
				{"X-Fencing-Token: 6", "X-Fencing-Lease: a%20b"},
				{"X-Fencing-Token: 9223372036854775806", "X-Fencing-Lease: %C3%A4"},
			} {
				a := s.raw(t, rawPost(goodPath, lines...))
				if a.status >= 300 || s.store.calls() != int64(i+1) || s.invoked.Load() != int64(i+1) && surface != "Raise" {
					t.Errorf("%q: status %d, %d invocations: %s", lines, a.status, s.invoked.Load(), a.body)
				}
			}
			if want := (guard.Mark{Token: guard.MaxToken, LeaseID: "\u00e4"}); surface != "Check" && s.store.mark(t, "acme") != want {
				t.Errorf("mark %+v, want %+v", s.store.mark(t, "acme"), want)
			}
		})
	}
}

// TestBadResourceFunc: a resource function that fails or returns no name, over
// a socket and for every way to guard a handler.
func TestBadResourceFunc(t *testing.T) {
	for _, c := range []struct {
		name   string
		value  string
		err    error
		status int
		reason string
	}{
		{"returns nothing", "", nil, 400, "invalid"},
		{"returns a newline", "a\nb", nil, 400, "invalid"},
		{"returns bytes that are not UTF-8", "a\xff", nil, 400, "invalid"},
		{"returns 513 bytes", strings.Repeat("x", 513), nil, 400, "invalid"},
		{"fails with invalid", "r", fmt.Errorf("period: %w", guard.ErrInvalid), 400, "invalid"},
		{"fails with not found", "r", fmt.Errorf("account: %w", guard.ErrNotFound), 404, "not_found"},
		{"fails with unavailable", "r", guard.Unavailable("look up", guard.Claim{}, errors.New("down")), 503, "unavailable"},
		{"misses a part, which is no missing token", "", guard.Missing("tenant"), 400, "invalid"},
		{"fails with stale", "r", guard.ErrStale, 500, "other"},
		{"fails with a mark, which is not disclosed", "", &guard.RejectedError{Reason: guard.ReasonConflict, Mark: guard.Mark{Token: 424242}}, 500, "other"},
		{"fails otherwise", "r", errors.New("no identity"), 500, "other"},
		{"is cancelled", "r", context.Canceled, 500, "other"},
	} {
		for surface, guarded := range guardedBy {
			t.Run(c.name+"/"+surface, func(t *testing.T) {
				s := newServiceAt(t, guarded, func(*http.Request) (string, error) { return c.value, c.err }, &Options{DiscloseMark: true})
				a := s.raw(t, rawPost(goodPath, "X-Fencing-Token: 5"))
				if a.status != c.status || a.reason() != c.reason || strings.Contains(a.body, "424242") {
					t.Errorf("status %d, problem %q; want %d, %q\n%s", a.status, a.reason(), c.status, c.reason, a.body)
				}
				if s.invoked.Load() != 0 || s.store.calls() != 0 {
					t.Errorf("%d invocations, %d calls of the store", s.invoked.Load(), s.store.calls())
				}
			})
		}
		fence := newFence(newStore(), func(*http.Request) (string, error) { return c.value, c.err }, nil)
		if _, err := fence.Check(newRequest("", "5", "")); reasonOf(err) != c.reason || c.err != nil && c.reason != "other" && c.reason != "invalid" && !errors.Is(err, c.err) {
			t.Errorf("%s: Check says %v", c.name, err)
		}
	}
}

// TestOuterSpaces: net/http removes spaces around a value over HTTP/1.1, not over
// HTTP/2. There a lease ID must not become another one by them, nor a token be
// guessed.
func TestOuterSpaces(t *testing.T) {
	for name, field := range map[string][2]string{
		"lease, in front": {LeaseHeader, " a"}, "lease, behind": {LeaseHeader, "a "}, "token": {TokenHeader, " 5"}, "resource": {ResourceHeader, "r "},
	} {
		for proto, want := range map[int]int{1: 200, 2: 400} {
			store := newStore()
			fence := guard.Must(New(store, literal("r"), &Options{Logger: silent}))
			server := httptest.NewUnstartedServer(fence.Admit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
			server.EnableHTTP2 = proto == 2
			server.StartTLS()
			r := guard.Must(http.NewRequestWithContext(t.Context(), "POST", server.URL, nil))
			r.Header = http.Header{TokenHeader: {"5"}, LeaseHeader: {"a"}, ResourceHeader: {"r"}, field[0]: {field[1]}}
			resp, err := server.Client().Do(r)
			testkit.Must(t, err)
			_ = resp.Body.Close()
			server.Close()
			mark := guard.Mark{}
			if want == 200 {
				mark = guard.Mark{Token: 5, LeaseID: "a"}
			}
			if resp.ProtoMajor != proto || resp.StatusCode != want || store.mark(t, "r") != mark {
				t.Errorf("%s over %s: %d, mark %+v", name, resp.Proto, resp.StatusCode, store.mark(t, "r"))
			}
		}
	}
}

// reasonOf returns the reason of a verdict.
func reasonOf(err error) string {
	var v *verdict
	if errors.As(err, &v) {
		return string(v.reason)
	}
	return ""
}

var (
	grammar = regexp.MustCompile(`^[1-9][0-9]{0,18}$`)
	encoded = regexp.MustCompile(`^([!#$&-+\--~]|%[0-9A-Fa-f]{2})+$`)
)

// FuzzParseHeader compares the parser with the grammar, written in another way,
// and shows that what is accepted converts back to the same field lines.
func FuzzParseHeader(f *testing.F) {
	for _, token := range []string{"", "1", "11", "0", "01", "+1", "-1", " 1", "1 ", "1,1", "1\n", "9223372036854775806", "9223372036854775807",
		"9999999999999999999", "18446744073709551617", "\u0661", "\uff11", "1\x00", "1_0", "0x1", "1e3", "1.0"} {
		f.Add(token, "", uint8(1), uint8(0))
		f.Add(token, "lease", uint8(1), uint8(1))
	}
	f.Add("1", "a", uint8(2), uint8(1))
	f.Add("1", "a", uint8(1), uint8(2))
	f.Add("1", "a\x00", uint8(1), uint8(1))
	f.Add("1", "\u2bb3 ", uint8(1), uint8(1))
	f.Add("1", " a", uint8(1), uint8(1))
	f.Add("1", "a b", uint8(1), uint8(1))
	f.Add("1", "\u00a0a\u2003", uint8(1), uint8(1))
	f.Add("1", "\xff", uint8(1), uint8(1))
	f.Add("1", "a, a", uint8(1), uint8(1))
	f.Add("1", "a%2C%20a", uint8(1), uint8(1))
	f.Add("1", "a%ff", uint8(1), uint8(1))
	f.Add("1", "a%f", uint8(1), uint8(1))
	f.Add("1", strings.Repeat("a", 129), uint8(1), uint8(1))
	fence := newFence(newStore(), literal("r"), nil)
	f.Fuzz(func(t *testing.T, token, lease string, tokens, leases uint8) {
		h := http.Header{}
		for range tokens % 4 {
			h.Add(TokenHeader, token)
		}
		for range leases % 4 {
			h.Add(LeaseHeader, lease)
		}
		var claim guard.Claim
		text, _ := url.PathUnescape(lease)
		_, err := fence.presented(&http.Request{Header: h}, &claim)
		wellFormed := tokens%4 == 1 && grammar.MatchString(token) &&
			(len(token) < 19 || token < "9223372036854775807") &&
			(leases%4 == 0 || leases%4 == 1 && encoded.MatchString(lease) && guard.ValidateLeaseID(text) == nil)
		if (err == nil) != wellFormed {
			t.Fatalf("%q x%d, %q x%d: %v", token, tokens%4, lease, leases%4, err)
		}
		if err != nil {
			var e *guard.InvalidError
			if !errors.As(err, &e) || e.Field != TokenHeader && e.Field != LeaseHeader || e.Missing && tokens%4 != 0 {
				t.Fatalf("%#v", err)
			}
			return
		}
		if id := claim.LeaseID; claim.Token.String() != token || (leases%4 == 1) != (id == text && id != "") {
			t.Fatalf("%q, %q came back as %+v", token, lease, claim)
		}
	})
}

// FuzzResourceKey gives two spellings of a path segment to chi and to ServeMux:
// the same route value gives the same resource, and different values give
// different ones.
func FuzzResourceKey(f *testing.F) {
	seeds := []string{"a", "%61", "%2561", "%25%36%31", "%252561", "a%2Fb", "a%2fb", "a+b", "a%20b", "a:b", "a%3Ab", "100%25", "%C3%A4", "%c3%a4",
		"%2e%2e", "%00", "%FF", "~", "%7e", "a;b", "a=b", "$", "%24", "%25", "%2525", "a%", "%zz"}
	for i, a := range seeds {
		f.Add(a, seeds[(i+1)%len(seeds)])
		f.Add(a, a)
	}
	keys := func(t *testing.T, segment string) (value string, found map[string]string) {
		u, err := url.ParseRequestURI("/acct/" + segment + "/close")
		if err != nil || strings.ContainsAny(segment, "/?#") || segment == "" {
			return "", nil
		}
		if value, err = url.PathUnescape(segment); err != nil {
			t.Fatalf("%q: parsed, and yet %v", segment, err)
		}
		found = map[string]string{}
		for name, c := range map[string]struct {
			route    func(http.Handler) http.Handler
			resource ResourceFunc
		}{
			"chi":            {chiRoute, ChiParam("id")},
			"chi path value": {chiRoute, PathValue("id")},
			"mux":            {muxRoute, PathValue("id")},
			"chi join":       {chiRoute, guard.Must(Named(guard.Must(guard.NewTemplate("{id}:x")), Bindings{"id": ChiParam("id")}))},
		} {
			copied := *u
			r := &http.Request{Method: "POST", URL: &copied, Host: "a.test", Header: http.Header{}}
			reached := false
			c.route(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				reached = true
				key, err := c.resource(r)
				if err != nil && (name != "chi join" || !errors.Is(err, guard.ErrInvalid)) {
					t.Errorf("%s: %q: %v", name, segment, err)
				}
				if err == nil {
					found[name] = key
				}
			})).ServeHTTP(httptest.NewRecorder(), r)
			if !reached && name != "mux" { // ServeMux redirects to the cleaned path
				t.Errorf("%s: %q did not match", name, segment)
			}
		}
		return value, found
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		valueA, keysA := keys(t, a)
		valueB, keysB := keys(t, b)
		for name, key := range keysA {
			if name != "chi join" && key != valueA {
				t.Errorf("%s: %q is %q, not %q", name, a, key, valueA)
			}
			if other, ok := keysB[name]; ok && (key == other) != (valueA == valueB) {
				t.Errorf("%s: %q and %q give %q and %q", name, a, b, key, other)
			}
		}
	})
}

// FuzzErrorFrom: whatever a server sends, there is no panic, the body can be
// read again, and only a response with a type of ours is an error.
func FuzzErrorFrom(f *testing.F) {
	for _, o := range rows {
		f.Add(o.status, problemType, []byte(`{"type":"`+typeURI(o.reason)+`","mark":"12","token":"11"}`))
	}
	f.Add(412, problemType, []byte(`{"type":"tag:fencepost-go.github.io,2026:problem/"}`))
	f.Add(412, problemType+"; charset=\"", []byte(`{"type":1}`))
	f.Add(200, problemType, []byte(`{"type":"tag:fencepost-go.github.io,2026:problem/stale"}`))
	f.Add(412, "text/plain", []byte("x"))
	f.Add(412, problemType, []byte(`[[[[`))
	f.Add(412, problemType, []byte("{\"type\":\"tag:fencepost-go.github.io,2026:problem/stale\",\"mark\":\"9223372036854775807\"}\xff"))
	f.Fuzz(func(t *testing.T, status int, contentType string, content []byte) {
		resp := response(status, contentType, "")
		resp.Body = io.NopCloser(bytes.NewReader(content))
		err := ErrorFrom(resp)
		if err != nil && (status < 400 || !bytes.Contains(content, []byte("problem")) && !bytes.Contains(content, []byte(`\`))) {
			t.Errorf("%d %q %q: %v", status, contentType, content, err)
		}
		var rejected *guard.RejectedError
		if errors.As(err, &rejected) && rejected.Mark.Token != guard.NoToken && !rejected.Mark.Token.Valid() {
			t.Errorf("mark %v", rejected.Mark)
		}
		if err != nil {
			_ = err.Error()
		}
		if again, readErr := io.ReadAll(resp.Body); readErr != nil || !bytes.Equal(again, content) {
			t.Errorf("the body is %q afterwards, %v", again, readErr)
		}
	})
}
