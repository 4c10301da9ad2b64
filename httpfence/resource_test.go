package httpfence

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/go-chi/chi/v5"
	chimw "github.com/go-chi/chi/v5/middleware"

	"github.com/fencepost-go/fencepost/guard"
)

// routed serves /acct/{id}/close over a socket and reports what the router
// itself gives as id, and what resource makes of it.
type routed struct {
	*service
	value    string // the router's own
	resource string
	err      error
}

func newRouted(t testing.TB, build func(h http.Handler) http.Handler, own func(*http.Request) string, resource ResourceFunc) *routed {
	t.Helper()
	r := &routed{}
	h := http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		r.value = own(req)
		r.resource, r.err = resource(req)
	})
	r.service = &service{Server: httptest.NewServer(build(h))}
	t.Cleanup(r.Close)
	return r
}

func (r *routed) get(t testing.TB, path string) int {
	t.Helper()
	r.value, r.resource, r.err = "", "", nil
	return r.raw(t, rawPost(path)).status
}

func chiRoute(h http.Handler) http.Handler {
	router := chi.NewRouter()
	router.Handle("/acct/{id}/close", h)
	return router
}

func muxRoute(h http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/acct/{id}/close", h)
	return mux
}

func ownChi(r *http.Request) string { return chi.URLParam(r, "id") }
func ownMux(r *http.Request) string { return r.PathValue("id") }

// TestSpellings records what the routers do, and shows that all spellings of
// one path give one resource and that nothing is unescaped twice.
func TestSpellings(t *testing.T) {
	spellings := []struct{ segment, chi, resource string }{
		{"a", "a", "a"},
		{"%61", "%61", "a"},
		{"%2561", "%61", "%61"}, // the default spelling of "%61": not unescaped again
		{"%25%36%31", "%25%36%31", "%61"},
		{"%252561", "%2561", "%2561"},
		{"%25%32561", "%25%32561", "%2561"},
		{"a%20b", "a b", "a b"},
		{"%61%20b", "%61%20b", "a b"},
		{"a%2Fb", "a%2Fb", "a/b"},
		{"a%2fb", "a%2fb", "a/b"},
		{"a%252Fb", "a%2Fb", "a%2Fb"},
		{"a+b", "a+b", "a+b"},
		{"a%2Bb", "a%2Bb", "a+b"},
		{"a:b", "a:b", "a:b"},
		{"a%3Ab", "a%3Ab", "a:b"},
		{"100%25", "100%", "100%"},
		{"100%25%2e", "100%25%2e", "100%."},
		{"%C3%A4", "\u00e4", "\u00e4"},
		{"%c3%a4", "%c3%a4", "\u00e4"}, // RawPath is set for lower-case hexadecimal, too
		{"%2e%2e", "%2e%2e", ".."},
		{"~a", "~a", "~a"},
		{"%7Ea", "%7Ea", "~a"},
	}
	for name, r := range map[string]*routed{
		"chi, ChiParam":       newRouted(t, chiRoute, ownChi, ChiParam("id")),
		"chi, PathValue":      newRouted(t, chiRoute, ownMux, PathValue("id")),
		"ServeMux, PathValue": newRouted(t, muxRoute, ownMux, PathValue("id")),
	} {
		t.Run(name, func(t *testing.T) {
			for _, c := range spellings {
				if status := r.get(t, "/acct/"+c.segment+"/close"); status != 200 {
					t.Fatalf("%s: %d", c.segment, status)
				}
				want := c.chi
				if strings.HasPrefix(name, "ServeMux") {
					want = c.resource // ServeMux unescapes by itself
				}
				if r.value != want {
					t.Errorf("%s: the router gives %q, not %q", c.segment, r.value, want)
				}
				if r.resource != c.resource || r.err != nil {
					t.Errorf("%s: resource %q, %v; want %q", c.segment, r.resource, r.err, c.resource)
				}
			}
		})
	}
}

// TestSpellingOfTheRest: RawPath is set by an escape anywhere in the path, so
// "%2561" then has another form at the router and must not at the mark.
func TestSpellingOfTheRest(t *testing.T) {
	for name, r := range map[string]*routed{
		"chi": newRouted(t, func(h http.Handler) http.Handler {
			router := chi.NewRouter()
			router.Handle("/acct/{id}/{verb}", h)
			return router
		}, ownChi, ChiParam("id")),
		"ServeMux": newRouted(t, func(h http.Handler) http.Handler {
			mux := http.NewServeMux()
			mux.Handle("/acct/{id}/{verb}", h)
			return mux
		}, ownMux, PathValue("id")),
	} {
		t.Run(name, func(t *testing.T) {
			for path, want := range map[string]string{
				"/acct/%2561/close": "%61", "/acct/%2561/%63lose": "%61", "/acct/%61/close": "a", "/acct/%61/%63lose": "a",
				"/acct/%2525/close": "%25", "/acct/%2525/%63lose": "%25",
			} {
				if status := r.get(t, path); status != 200 || r.err != nil || r.resource != want {
					t.Errorf("%s: %d, resource %q, %v; want %q", path, status, r.resource, r.err, want)
				}
			}
		})
	}
}

// TestNoDoubleUnescape: StripSlashes and URLFormat make chi route by the
// unescaped path although RawPath is set. Unescaping because RawPath is set,
// which the control does, would give "a" for a request that writes to "%61".
func TestNoDoubleUnescape(t *testing.T) {
	naive := func(r *http.Request) (string, error) { // the control
		v := chi.URLParam(r, "id")
		if r.URL.RawPath != "" {
			return url.PathUnescape(v)
		}
		return v, nil
	}
	behind := func(mw func(http.Handler) http.Handler) func(http.Handler) http.Handler {
		return func(h http.Handler) http.Handler {
			router := chi.NewRouter()
			router.Use(mw)
			router.Handle("/acct/{id}/{verb}", h)
			return router
		}
	}
	const path = "/acct/%2561/%63lose/"
	control := newRouted(t, behind(chimw.StripSlashes), ownChi, naive)
	if control.get(t, path); control.value != "%61" || control.resource != "a" {
		t.Errorf("the control shows nothing: %q, %q", control.value, control.resource)
	}
	for _, resource := range []ResourceFunc{ChiParam("id"), PathValue("id")} {
		strip := newRouted(t, behind(chimw.StripSlashes), ownChi, resource)
		if strip.get(t, path); strip.err != nil || strip.resource != "%61" {
			t.Errorf("StripSlashes: %q, %v", strip.resource, strip.err)
		}
		format := newRouted(t, behind(chimw.URLFormat), ownChi, resource)
		if format.get(t, "/acct/%2561/%63lose.json"); format.err != nil || format.resource != "%61" {
			t.Errorf("URLFormat: %q, %v", format.resource, format.err)
		}
		clean := newRouted(t, behind(chimw.CleanPath), ownChi, resource)
		if clean.get(t, "/acct//%61/%63lose"); clean.err != nil || clean.resource != "a" {
			t.Errorf("CleanPath: %q, %v", clean.resource, clean.err)
		}
		// Where both forms occur it cannot be told: refused, not guessed.
		if strip.get(t, "/acct/%2525/%63lose/"); !errors.Is(strip.err, guard.ErrInvalid) {
			t.Errorf("ambiguous: %q, %v", strip.resource, strip.err)
		}
	}
}

func TestRoutersInRouters(t *testing.T) {
	for name, build := range map[string]func(http.Handler) http.Handler{
		"chi mounts chi": func(h http.Handler) http.Handler {
			root := chi.NewRouter()
			root.Route("/acct/{id}", func(r chi.Router) { r.Handle("/close", h) })
			return root
		},
		"chi sub-router's Use": func(h http.Handler) http.Handler {
			root := chi.NewRouter()
			root.Route("/acct/{id}", func(r chi.Router) {
				r.Use(func(http.Handler) http.Handler { return h })
				r.Handle("/close", http.NotFoundHandler())
			})
			return root
		},
		"chi around ServeMux, same pattern": func(h http.Handler) http.Handler {
			root := chi.NewRouter()
			root.Handle("/acct/{id}/close", muxRoute(h))
			return root
		},
		"chi around ServeMux without the name": func(h http.Handler) http.Handler {
			mux := http.NewServeMux()
			mux.Handle("/acct/{other}/close", h)
			root := chi.NewRouter()
			root.Handle("/acct/{id}/close", mux)
			return root
		},
		"ServeMux around chi": func(h http.Handler) http.Handler {
			mux := http.NewServeMux()
			mux.Handle("/acct/{id}/", chiRoute(h))
			return mux
		},
		"ServeMux around chi without the name": func(h http.Handler) http.Handler {
			root := chi.NewRouter()
			root.Handle("/acct/*", h)
			mux := http.NewServeMux()
			mux.Handle("/acct/{id}/close", root)
			return mux
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRouted(t, build, ownMux, PathValue("id"))
			for segment, want := range map[string]string{"a": "a", "%61": "a", "%2561": "%61", "%25%36%31": "%61", "a%2Fb": "a/b", "%2525%2f": "%25/"} {
				if r.get(t, "/acct/"+segment+"/close"); r.err != nil || r.resource != want {
					t.Errorf("%s: %q, %v; want %q", segment, r.resource, r.err, want)
				}
			}
		})
	}
}

// TestMalformedEscape: a URL off the wire has none; one rewritten on the way
// may.
func TestMalformedEscape(t *testing.T) {
	for _, raw := range []string{"/acct/%zz/close", "/acct/%6/close", "/acct/100%/close"} {
		r := httptest.NewRequest("POST", "/acct/x/close", nil)
		r.URL.RawPath = raw
		var err error
		chiRoute(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, err = ChiParam("id")(r) })).ServeHTTP(httptest.NewRecorder(), r)
		if !errors.Is(err, guard.ErrInvalid) {
			t.Errorf("%s: %v", raw, err)
		}
	}
}

func TestJoin(t *testing.T) {
	part := func(s string) ResourceFunc { return func(*http.Request) (string, error) { return s, nil } }
	r := httptest.NewRequest("POST", "/", nil)
	for want, parts := range map[string][]ResourceFunc{
		"tenant:a":          {part("tenant"), part("a")},
		"tenant:a%3Ab":      {part("tenant"), part("a:b")},
		"tenant:a:b":        {part("tenant"), part("a"), part("b")},
		"100%25":            {part("100%")},
		"x%3Ay:z":           {Join(part("x"), part("y")), part("z")},
		"1:2:3:4:5:6":       {part("1"), part("2"), part("3"), part("4"), part("5"), part("6")},
		"billing-close:a/b": {Literal("billing-close"), part("a/b")},
	} {
		if got, err := Join(parts...)(r); got != want || err != nil {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
	}
	for name, parts := range map[string][]ResourceFunc{
		"empty": {part("a"), part("")}, "alone": {part("")}, "control": {part("a"), part("\n")}, "long": {part(strings.Repeat(":", 200))},
	} {
		if got, err := Join(parts...)(r); !errors.Is(err, guard.ErrInvalid) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	sentinel := errors.New("no identity")
	if _, err := Join(part("a"), func(*http.Request) (string, error) { return "x", sentinel })(r); !errors.Is(err, sentinel) {
		t.Errorf("%v", err)
	}
}
