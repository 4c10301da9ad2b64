package httpfence

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/go-chi/chi/v5"

	"github.com/fencepost-go/fencepost/guard"
)

// TestUnrouted: where the route is not known yet, the server is wrong and not
// the client; in any case nothing gets through.
func TestUnrouted(t *testing.T) {
	for name, c := range map[string]struct {
		resource ResourceFunc
		build    func(fence *Middleware, h http.Handler) http.Handler
		status   int
	}{
		"chi root Use": {ChiParam("id"), func(f *Middleware, h http.Handler) http.Handler {
			r := chi.NewRouter()
			r.Use(f.Admit)
			r.Handle("/acct/{id}/close", h)
			return r
		}, 500},
		"chi root Use, PathValue": {PathValue("id"), func(f *Middleware, h http.Handler) http.Handler {
			r := chi.NewRouter()
			r.Use(f.Admit)
			r.Handle("/acct/{id}/close", h)
			return r
		}, 500},
		"chi, wrong name": {ChiParam("ID"), func(f *Middleware, h http.Handler) http.Handler {
			r := chi.NewRouter()
			r.With(f.Admit).Handle("/acct/{id}/close", h)
			return r
		}, 500},
		"no chi":          {ChiParam("id"), func(f *Middleware, h http.Handler) http.Handler { return muxRoute(f.Admit(h)) }, 500},
		"around ServeMux": {PathValue("id"), func(f *Middleware, h http.Handler) http.Handler { return f.Admit(muxRoute(h)) }, 500},
		"ServeMux, empty rest": {PathValue("rest"), func(f *Middleware, h http.Handler) http.Handler {
			mux := http.NewServeMux()
			mux.Handle("/acct/acme/close/{rest...}", f.Admit(h))
			mux.Handle("/acct/acme/close", f.Admit(h))
			return mux
		}, 500},
		"chi, empty rest": {ChiParam("*"), func(f *Middleware, h http.Handler) http.Handler {
			r := chi.NewRouter()
			r.With(f.Admit).Handle("/acct/acme/close*", h)
			return r
		}, 400},
		"control: With": {ChiParam("id"), func(f *Middleware, h http.Handler) http.Handler {
			r := chi.NewRouter()
			r.With(f.Admit).Handle("/acct/{id}/close", h)
			return r
		}, 200},
		"Use in a Route": {ChiParam("id"), func(f *Middleware, h http.Handler) http.Handler {
			r := chi.NewRouter()
			r.Route("/acct/{id}", func(r chi.Router) {
				r.Use(f.Admit)
				r.Handle("/close", h)
			})
			return r
		}, 500},
		"Use in a Route, PathValue": {PathValue("id"), func(f *Middleware, h http.Handler) http.Handler {
			r := chi.NewRouter()
			r.Route("/acct/{id}", func(r chi.Router) {
				r.Use(f.Admit)
				r.Handle("/close", h)
			})
			return r
		}, 500},
		"control: With in a Route": {ChiParam("id"), func(f *Middleware, h http.Handler) http.Handler {
			r := chi.NewRouter()
			r.Route("/acct/{id}", func(r chi.Router) { r.With(f.Admit).Handle("/close", h) })
			return r
		}, 200},
		"control: Use in a Group": {ChiParam("id"), func(f *Middleware, h http.Handler) http.Handler {
			r := chi.NewRouter()
			r.Group(func(r chi.Router) {
				r.Use(f.Admit)
				r.Handle("/acct/{id}/close", h)
			})
			return r
		}, 200},
	} {
		t.Run(name, func(t *testing.T) {
			s := &service{store: newStore()}
			s.Server = httptest.NewServer(c.build(newFence(s.store, c.resource, nil), s.handler()))
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
}
