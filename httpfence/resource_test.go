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

// routed serves /acct/{id}/close over a socket and reports the id that the
// router itself gives, and what resource returns for it.
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

// chiAt and muxAt route a pattern to a handler.
func chiAt(pattern string) func(http.Handler) http.Handler {
	return func(h http.Handler) http.Handler {
		router := chi.NewRouter()
		router.Handle(pattern, h)
		return router
	}
}

func muxAt(pattern string) func(http.Handler) http.Handler {
	return func(h http.Handler) http.Handler {
		mux := http.NewServeMux()
		mux.Handle(pattern, h)
		return mux
	}
}

// mounted is what chi mounts at a prefix.
func mounted(prefix string, inner func(http.Handler) http.Handler) func(http.Handler) http.Handler {
	return func(h http.Handler) http.Handler {
		router := chi.NewRouter()
		router.Mount(prefix, inner(h))
		return router
	}
}

// stripped is what sees a path without its prefix.
func stripped(prefix string, inner func(http.Handler) http.Handler) func(http.Handler) http.Handler {
	return func(h http.Handler) http.Handler { return http.StripPrefix(prefix, inner(h)) }
}

// around gives what inner makes of a handler to outer.
func around(outer, inner func(http.Handler) http.Handler) func(http.Handler) http.Handler {
	return func(h http.Handler) http.Handler { return outer(inner(h)) }
}

var chiRoute, muxRoute = chiAt("/acct/{id}/close"), muxAt("/acct/{id}/close")

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
		{"%c3%a4", "%c3%a4", "\u00e4"}, // RawPath is set for lower-case hexadecimal as well
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

// TestRewrittenPaths: StripSlashes, URLFormat and CleanPath make chi route
// a path that is neither the escaped nor the unescaped one of the request, and
// do not say which one they started from. An escape in a value is then refused,
// not guessed; values without one are the same in both. The controls guess, by
// RawPath and by looking for the value in both: one path under two names.
func TestRewrittenPaths(t *testing.T) {
	byRawPath := func(r *http.Request) (string, error) {
		v := chi.URLParam(r, "id")
		if r.URL.RawPath != "" {
			return url.PathUnescape(v)
		}
		return v, nil
	}
	bySearch := func(r *http.Request) (string, error) {
		v := chi.URLParam(r, "*")
		if strings.Contains(r.URL.Path, v) {
			return v, nil
		}
		return url.PathUnescape(v)
	}
	behind := func(mw func(http.Handler) http.Handler, pattern string) func(http.Handler) http.Handler {
		return func(h http.Handler) http.Handler {
			router := chi.NewRouter()
			router.Use(mw)
			router.Handle(pattern, h)
			return router
		}
	}
	const named, rest = "/acct/{id}/{verb}", "/a/*"
	control := newRouted(t, behind(chimw.StripSlashes, named), ownChi, byRawPath)
	if control.get(t, "/acct/%2561/%63lose/"); control.value != "%61" || control.resource != "a" {
		t.Errorf("the control by RawPath shows nothing: %q, %q", control.value, control.resource)
	}
	const plain, twisted = "/a/a/q%2Fr", "/a/a%2Fq%252Fr/../a//q%2Fr" // one path to the handler
	ownRest := func(r *http.Request) string { return chi.URLParam(r, "*") }
	control = newRouted(t, behind(chimw.CleanPath, rest), ownRest, bySearch)
	control.get(t, plain)
	value, name := control.value, control.resource
	if control.get(t, twisted); control.value != value || control.resource == name {
		t.Errorf("the control by search shows nothing: %q, %q; %q, %q", value, name, control.value, control.resource)
	}
	for _, c := range []struct {
		mw       func(http.Handler) http.Handler
		pattern  string
		resource ResourceFunc
		path     string
		want     string // "" is refused
	}{
		{chimw.CleanPath, rest, ChiParam("*"), plain, "a/q/r"},
		{chimw.CleanPath, rest, PathValue("*"), plain, "a/q/r"},
		{chimw.CleanPath, rest, ChiParam("*"), twisted, ""},
		{chimw.CleanPath, rest, PathValue("*"), twisted, ""},
		{chimw.CleanPath, rest, ChiParam("*"), "/a//a/./b/../q", "a/q"},
		{chimw.CleanPath, named, ChiParam("id"), "/acct//%61/close", ""},
		{chimw.CleanPath, named, ChiParam("id"), "/acct//a/close", "a"},
		{chimw.CleanPath, named, ChiParam("id"), "/acct/%61/close", "a"},
		{chimw.CleanPath, named, ChiParam("id"), "/acct/%2561/%63lose", "%61"},
		{chimw.StripSlashes, named, ChiParam("id"), "/acct/%2561/%63lose/", ""},
		{chimw.StripSlashes, named, PathValue("id"), "/acct/%2525/%63lose/", ""},
		{chimw.StripSlashes, named, ChiParam("id"), "/acct/a/close/", "a"},
		{chimw.StripSlashes, named, ChiParam("id"), "/acct/%2561/%63lose", "%61"},
		{chimw.URLFormat, named, ChiParam("id"), "/acct/%2561/%63lose.json", ""},
		{chimw.URLFormat, named, ChiParam("id"), "/acct/a/close.json", "a"},
	} {
		r := newRouted(t, behind(c.mw, c.pattern), ownChi, c.resource)
		r.get(t, c.path)
		if r.resource != c.want || (c.want == "") != errors.Is(r.err, guard.ErrInvalid) {
			t.Errorf("%s: %q, %v; want %q", c.path, r.resource, r.err, c.want)
		}
	}
}

// TestMalformedEscape: a URL from the wire has none; a rewritten one may.
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

// TestUnrouted: if the route is not known yet, the server is at fault and not
// the client; in any case nothing gets through.
func TestUnrouted(t *testing.T) {
	type guarded = func(f *Middleware, h http.Handler) http.Handler
	rootUse := func(f *Middleware, h http.Handler) http.Handler {
		r := chi.NewRouter()
		r.Use(f.Admit)
		r.Handle("/acct/{id}/close", h)
		return r
	}
	routeUse := func(f *Middleware, h http.Handler) http.Handler {
		return mounted("/acct/{id}", func(h http.Handler) http.Handler {
			r := chi.NewRouter()
			r.Use(f.Admit)
			r.Handle("/close", h)
			return r
		})(h)
	}
	foreignUse := func(f *Middleware, h http.Handler) http.Handler { // what is mounted below may not be there
		return mounted("/acct/{id}", func(h http.Handler) http.Handler {
			return f.Admit(muxAt("/acct/{id}/close")(h))
		})(h)
	}
	groupUse := func(f *Middleware, h http.Handler) http.Handler {
		r := chi.NewRouter()
		r.Group(func(r chi.Router) {
			r.Use(f.Admit)
			r.Handle("/acct/{id}/close", h)
		})
		return r
	}
	behind := func(route func(http.Handler) http.Handler) guarded {
		return func(f *Middleware, h http.Handler) http.Handler { return route(f.Admit(h)) }
	}
	muxes := func(f *Middleware, h http.Handler) http.Handler {
		mux := http.NewServeMux()
		mux.Handle("/acct/acme/close/{rest...}", f.Admit(h))
		mux.Handle("/acct/acme/close", f.Admit(h))
		return mux
	}
	for name, c := range map[string]struct {
		resource ResourceFunc
		build    guarded
		status   int
	}{
		"chi root Use":              {ChiParam("id"), rootUse, 200},
		"chi root Use, PathValue":   {PathValue("id"), rootUse, 500},
		"Use in a Route":            {ChiParam("id"), routeUse, 200},
		"Use in a Route, PathValue": {PathValue("id"), routeUse, 200},
		"Use around another router": {ChiParam("id"), foreignUse, 500},
		"chi, wrong name":           {ChiParam("ID"), behind(chiRoute), 500},
		"no chi":                    {ChiParam("id"), behind(muxRoute), 500},
		"around ServeMux":           {PathValue("id"), func(f *Middleware, h http.Handler) http.Handler { return f.Admit(muxRoute(h)) }, 500},
		"ServeMux, empty rest":      {PathValue("rest"), muxes, 500},
		"chi, empty rest":           {ChiParam("*"), behind(chiAt("/acct/acme/close*")), 400},
		"control: behind a route":   {ChiParam("id"), behind(chiRoute), 200},
		"control: in a Route":       {ChiParam("id"), behind(mounted("/acct/{id}", chiAt("/close"))), 200},
		"control: Use in a Group":   {ChiParam("id"), groupUse, 200},
	} {
		t.Run(name, func(t *testing.T) {
			s := &service{store: newStore()}
			s.Server = httptest.NewServer(c.build(newFence(s.store, c.resource, nil), s.handler(nil)))
			defer s.Close()
			a := s.raw(t, rawPost(goodPath, "X-Fencing-Token: 5"))
			if a.status != c.status || (s.invoked.Load() == 1) != (c.status == 200) {
				t.Errorf("%d, %d invocations: %s", a.status, s.invoked.Load(), a.body)
			}
			if c.status != 200 && s.store.calls() != 0 {
				t.Error("the store was asked")
			}
		})
	}
	// A wildcard that matched nothing is the client's empty name.
	mux := http.NewServeMux()
	var err error
	mux.HandleFunc("/x/{rest...}", func(_ http.ResponseWriter, r *http.Request) { _, err = PathValue("rest")(r) })
	mux.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("POST", "/x/", nil))
	if !errors.Is(err, guard.ErrInvalid) {
		t.Errorf("empty rest: %v", err)
	}
	router := chi.NewRouter()
	router.HandleFunc("/x/*", func(_ http.ResponseWriter, r *http.Request) { _, err = ChiParam("*")(r) })
	router.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("POST", "/x/", nil))
	if !errors.Is(err, guard.ErrInvalid) {
		t.Errorf("empty rest of chi: %v", err)
	}
	// A wildcard whose name only has the same prefix is a different one; its use
	// is the server's mistake.
	mux.HandleFunc("/y/{restored...}", func(_ http.ResponseWriter, r *http.Request) { _, err = PathValue("rest")(r) })
	mux.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("POST", "/y/", nil))
	if err == nil || errors.Is(err, guard.ErrInvalid) {
		t.Errorf("no such wildcard: %v", err)
	}
	// The logged error says where the name should have come from.
	_, err = newFence(newStore(), PathValue("rest"), nil).Check(newRequest("x", "5", ""))
	if want := "httpfence: resource of the request: httpfence: the route "; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("%v, want %s...", err, want)
	}
}

// TestChiUse: chi's own idiom, a fence in the Use of a router, of a Route or of one in
// another, guards each of its routes by the name that the route has, however the path is
// escaped. A request that matches no route, or not with its method, raises no mark. The
// control is the same route with the fence behind it.
func TestChiUse(t *testing.T) {
	type guarded = func(http.Handler) http.Handler
	for name, build := range map[string]func(r chi.Router, fence guarded, h http.HandlerFunc){
		"Route": func(r chi.Router, fence guarded, h http.HandlerFunc) {
			r.Route("/acct/{id}", func(r chi.Router) {
				r.Use(fence)
				r.Post("/close", h)
				r.Post("/", h)
			})
		},
		"root": func(r chi.Router, fence guarded, h http.HandlerFunc) {
			r.Use(fence)
			r.Post("/acct/{id}/close", h)
			r.Post("/acct/{id}", h)
			r.Post("/acct/{id}/", h)
		},
		"With and Route": func(r chi.Router, fence guarded, h http.HandlerFunc) {
			r.With(fence).Route("/acct/{id}", func(r chi.Router) {
				r.Post("/close", h)
				r.Post("/", h)
			})
		},
		"two Routes": func(r chi.Router, fence guarded, h http.HandlerFunc) {
			r.Route("/acct", func(r chi.Router) {
				r.Use(fence)
				r.Route("/{id}", func(r chi.Router) {
					r.Post("/close", h)
					r.Post("/", h)
				})
			})
		},
		"control": func(r chi.Router, fence guarded, h http.HandlerFunc) {
			r.With(fence).Post("/acct/{id}/close", h)
			r.With(fence).Post("/acct/{id}", h)
			r.With(fence).Post("/acct/{id}/", h)
		},
	} {
		for _, c := range []struct {
			method, path string
			status       int
			resource     string
		}{
			{"POST", "/acct/acme/close", 200, "acme"}, {"POST", "/acct/%61cme/close", 200, "acme"}, {"POST", "/acct/a%2Fb/close", 200, "a/b"},
			{"POST", "/acct/%2561/close", 200, "%61"}, {"POST", "/acct/acme", 200, "acme"}, {"POST", "/acct/acme/", 200, "acme"},
			{"POST", "/acct/acme/none", 404, ""}, {"POST", "/acct/acme/close/more", 404, ""}, {"PUT", "/acct/acme/close", 404, ""},
			{"POST", "/none", 404, ""}, {"GET", "/acct/acme/close", 405, ""},
		} {
			if name == "control" && c.method == "PUT" {
				c.status = 405 // behind the route chi itself responds
			}
			store, got := newStore(), ""
			router := chi.NewRouter()
			fence := newFence(store, ChiParam("id"), nil)
			build(router, fence.Admit, func(w http.ResponseWriter, r *http.Request) {
				claim, _ := guard.ClaimFrom(r.Context())
				got = claim.Resource
			})
			r := httptest.NewRequest(c.method, c.path, nil)
			r.Header.Set(TokenHeader, "5")
			w := httptest.NewRecorder()
			router.ServeHTTP(w, r)
			if w.Code != c.status || got != c.resource || (store.calls() == 0) != (c.resource == "") {
				t.Errorf("%s: %s %s: %d, resource %q, %d calls of the store: %s", name, c.method, c.path, w.Code, got, store.calls(), w.Body)
			}
		}
	}
	// Middleware in front that has rewritten the path: the route is the one that is taken,
	// and a value that may have been unescaped before is refused.
	for path, want := range map[string]int{"/acct/acme/close/": 200, "/acct/%61cme/close/": 200, "/acct/a%2561/close/": 400, "/acct/acme/none/": 404} {
		router := chi.NewRouter()
		router.Use(chimw.StripSlashes)
		router.Route("/acct/{id}", func(r chi.Router) {
			r.Use(newFence(newStore(), ChiParam("id"), nil).Admit)
			r.Post("/close", ok)
		})
		r := httptest.NewRequest("POST", path, nil)
		r.Header.Set(TokenHeader, "5")
		w := httptest.NewRecorder()
		router.ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}

// TestRoutersInRouters: behind routers in routers and handlers that strip a prefix,
// with patterns that match several segments, and with an escape elsewhere in the path
// (which sets RawPath), one path still gives one resource, however it is escaped; and
// a different path gives another.
func TestRoutersInRouters(t *testing.T) {
	id := map[string]string{
		"a": "a", "%61": "a", "%2561": "%61", "%25%36%31": "%61", "a%2Fb": "a/b", "a%2fb": "a/b", "a%252Fb": "a%2Fb", "%C3%A4": "\u00e4", "%c3%a4": "\u00e4",
	}
	rest := map[string]string{
		"a": "a", "%61": "a", "a/b": "a/b", "a%2Fb": "a/b", "a%2fb/c": "a/b/c", "%61/b": "a/b", "a/": "a/", "a%2F": "a/", "%2561/b": "%61/b", "%25%36%31/b": "%61/b",
	}
	for name, c := range map[string]struct {
		build    func(http.Handler) http.Handler
		resource ResourceFunc
		prefix   string
		suffix   string
		want     map[string]string
	}{
		"StripPrefix around chi":               {stripped("/api", chiRoute), ChiParam("id"), "/api/acct/", "/close", id},
		"StripPrefix around ServeMux":          {stripped("/api", muxRoute), PathValue("id"), "/api/acct/", "/close", id},
		"chi mounts what is stripped":          {mounted("/api", stripped("/api", chiRoute)), ChiParam("id"), "/api/acct/", "/close", id},
		"chi mounts twice":                     {mounted("/api", mounted("/v1", chiRoute)), ChiParam("id"), "/api/v1/acct/", "/close", id},
		"chi mounts twice, PathValue":          {mounted("/api", mounted("/v1", chiRoute)), PathValue("id"), "/api/v1/acct/", "/close", id},
		"an escape elsewhere, chi":             {chiAt("/acct/{id}/{verb}"), ChiParam("id"), "/acct/", "/%63lose", id},
		"an escape elsewhere, ServeMux":        {muxAt("/acct/{id}/{verb}"), PathValue("id"), "/acct/", "/%63lose", id},
		"chi mounts chi":                       {mounted("/acct/{id}", chiAt("/close")), PathValue("id"), "/acct/", "/close", id},
		"chi around ServeMux, same pattern":    {around(chiRoute, muxRoute), PathValue("id"), "/acct/", "/close", id},
		"chi around ServeMux without the name": {around(chiRoute, muxAt("/acct/{other}/close")), PathValue("id"), "/acct/", "/close", id},
		"ServeMux around chi":                  {around(muxAt("/acct/{id}/"), chiRoute), PathValue("id"), "/acct/", "/close", id},
		"ServeMux around chi without the name": {around(muxRoute, chiAt("/acct/*")), PathValue("id"), "/acct/", "/close", id},
		"the rest of ServeMux":                 {muxAt("/files/{rest...}"), PathValue("rest"), "/files/", "", rest},
		"the rest of chi":                      {chiAt("/files/*"), ChiParam("*"), "/files/", "", rest},
		"the rest of a mounted chi":            {mounted("/api", chiAt("/files/*")), ChiParam("*"), "/api/files/", "", rest},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRouted(t, c.build, ownMux, c.resource)
			for escaped, want := range c.want {
				if status := r.get(t, c.prefix+escaped+c.suffix); status != 200 || r.err != nil || r.resource != want {
					t.Errorf("%s: %d, %q, %v; want %q", escaped, status, r.resource, r.err, want)
				}
			}
		})
	}
}
