package httpfence

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/go-chi/chi/v5"
)

// TestPrefixesAndWildcards: what takes a part of the path away in front, and
// what matches several segments at once, leaves one resource to one path,
// however it is escaped; and a path that differs has another.
func TestPrefixesAndWildcards(t *testing.T) {
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
		"StripPrefix around chi": {func(h http.Handler) http.Handler {
			return http.StripPrefix("/api", chiRoute(h))
		}, ChiParam("id"), "/api/acct/", "/close", id},
		"StripPrefix around ServeMux": {func(h http.Handler) http.Handler {
			return http.StripPrefix("/api", muxRoute(h))
		}, PathValue("id"), "/api/acct/", "/close", id},
		"chi mounts what is stripped": {func(h http.Handler) http.Handler {
			root := chi.NewRouter()
			root.Mount("/api", http.StripPrefix("/api", chiRoute(h)))
			return root
		}, ChiParam("id"), "/api/acct/", "/close", id},
		"chi mounts twice": {func(h http.Handler) http.Handler {
			root, sub := chi.NewRouter(), chi.NewRouter()
			sub.Mount("/v1", chiRoute(h))
			root.Mount("/api", sub)
			return root
		}, ChiParam("id"), "/api/v1/acct/", "/close", id},
		"chi mounts twice, PathValue": {func(h http.Handler) http.Handler {
			root, sub := chi.NewRouter(), chi.NewRouter()
			sub.Mount("/v1", chiRoute(h))
			root.Mount("/api", sub)
			return root
		}, PathValue("id"), "/api/v1/acct/", "/close", id},
		"the rest of ServeMux": {func(h http.Handler) http.Handler {
			mux := http.NewServeMux()
			mux.Handle("/files/{rest...}", h)
			return mux
		}, PathValue("rest"), "/files/", "", rest},
		"the rest of chi": {func(h http.Handler) http.Handler {
			root := chi.NewRouter()
			root.Handle("/files/*", h)
			return root
		}, ChiParam("*"), "/files/", "", rest},
		"the rest of a mounted chi": {func(h http.Handler) http.Handler {
			root, sub := chi.NewRouter(), chi.NewRouter()
			sub.Handle("/files/*", h)
			root.Mount("/api", sub)
			return root
		}, ChiParam("*"), "/api/files/", "", rest},
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

// An empty rest names nothing, and is not the mark of something else.
func TestEmptyRest(t *testing.T) {
	for name, c := range map[string]struct {
		build    func(http.Handler) http.Handler
		resource ResourceFunc
	}{
		"ServeMux": {func(h http.Handler) http.Handler {
			mux := http.NewServeMux()
			mux.Handle("/files/{rest...}", h)
			return mux
		}, PathValue("rest")},
		"chi": {func(h http.Handler) http.Handler {
			root := chi.NewRouter()
			root.Handle("/files/*", h)
			return root
		}, ChiParam("*")},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServiceBy(t, c.build, c.resource)
			if a := s.raw(t, rawPost("/files/", "X-Fencing-Token: 5")); a.status != 400 || a.reason() != "invalid" || s.invoked.Load() != 0 {
				t.Errorf("%d, %q, %d invocations", a.status, a.reason(), s.invoked.Load())
			}
			if a := s.raw(t, rawPost("/files/x", "X-Fencing-Token: 5")); a.status != 200 || s.invoked.Load() != 1 {
				t.Errorf("control: %d, %d invocations", a.status, s.invoked.Load())
			}
		})
	}
}

// newServiceBy is newService with a router of the test's own.
func newServiceBy(t *testing.T, build func(http.Handler) http.Handler, resource ResourceFunc) *service {
	t.Helper()
	s := &service{store: newStore()}
	s.fence = newFence(s.store, resource, nil)
	s.Server = httptest.NewServer(build(s.fence.Admit(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		s.invoked.Add(1)
		_, _ = io.Copy(io.Discard, r.Body)
	}))))
	t.Cleanup(s.Close)
	return s
}

// A client that waits for 100 Continue is refused without being asked for its
// body, and an admitted one is asked.
func TestExpectContinue(t *testing.T) {
	s := newServiceBy(t, muxRoute, PathValue("id"))
	for token, want := range map[string]int{"": 428, "05": 400, "5": 100} {
		request := strings.Replace(rawPost(goodPath, "Expect: 100-continue", "X-Fencing-Token: "+token), "Content-Length: 0", "Content-Length: 5", 1)
		if token == "" {
			request = strings.Replace(request, "X-Fencing-Token: \r\n", "", 1)
		}
		if a := s.raw(t, request); a.status != want {
			t.Errorf("token %q: %d, want %d", token, a.status, want)
		}
	}
	if n := s.invoked.Load(); n != 1 {
		t.Errorf("%d invocations", n)
	}
}
