package httpfence

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
)

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
