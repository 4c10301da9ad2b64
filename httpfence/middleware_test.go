package httpfence

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
)

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
