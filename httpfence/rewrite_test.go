package httpfence

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/go-chi/chi/v5"
	chimw "github.com/go-chi/chi/v5/middleware"

	"github.com/fencepost-go/fencepost/guard"
)

// override is the kind of middleware that lets a form say DELETE.
func override(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if m := r.Header.Get("X-HTTP-Method-Override"); m != "" {
			r.Method = m
		}
		next.ServeHTTP(w, r)
	})
}

// TestMethodOverride: the method that counts is the one Admit sees. Whatever
// rewrites it has to stand in front; the control has it behind, and a "GET"
// gets through that is a DELETE to the handler.
func TestMethodOverride(t *testing.T) {
	for name, c := range map[string]struct {
		build  func(*Middleware, http.Handler) http.Handler
		method string // what the client sends
		header string
		status int
	}{
		"in front":          {func(f *Middleware, h http.Handler) http.Handler { return override(f.Admit(h)) }, "GET", "DELETE", 428},
		"in front, to GET":  {func(f *Middleware, h http.Handler) http.Handler { return override(f.Admit(h)) }, "POST", "GET", 200},
		"control: behind":   {func(f *Middleware, h http.Handler) http.Handler { return f.Admit(override(h)) }, "GET", "DELETE", 200},
		"no such rewriting": {func(f *Middleware, h http.Handler) http.Handler { return f.Admit(h) }, "DELETE", "GET", 428},
	} {
		t.Run(name, func(t *testing.T) {
			s := &service{store: newStore()}
			s.Server = httptest.NewServer(c.build(newFence(s.store, literal("r"), nil), s.handler()))
			defer s.Close()
			if a := do(t, c.method, s.URL, "X-HTTP-Method-Override", c.header); a.status != c.status {
				t.Errorf("%d, want %d", a.status, c.status)
			}
		})
	}
}

// TestChiRewriters: chi's middlewares that answer or rewrite by themselves,
// around a guarded route. HEAD for a GET route is unguarded like the GET.
func TestChiRewriters(t *testing.T) {
	for name, mw := range map[string]func(http.Handler) http.Handler{
		"StripSlashes": chimw.StripSlashes, "CleanPath": chimw.CleanPath, "GetHead": chimw.GetHead, "Recoverer": chimw.Recoverer,
		"Compress": chimw.Compress(5), "ThrottleAll": chimw.Throttle(8),
	} {
		t.Run(name, func(t *testing.T) {
			s := &service{store: newStore()}
			s.fence = newFence(s.store, ChiParam("id"), nil)
			router := chi.NewRouter()
			router.Use(mw)
			router.With(s.fence.Admit).Get("/acct/{id}/close", s.handler().ServeHTTP)
			router.With(s.fence.Admit).Post("/acct/{id}/close", s.handler().ServeHTTP)
			s.Server = httptest.NewServer(router)
			defer s.Close()
			if a := s.post(t, "acme", "11", ""); a.status != 200 {
				t.Errorf("%+v", a)
			}
			if a := do(t, "POST", s.URL+goodPath, TokenHeader, "10", "Accept-Encoding", "identity"); a.status != 412 || a.reason() != "stale" {
				t.Errorf("%+v", a)
			}
			if a := do(t, "GET", s.URL+goodPath); a.status != 200 {
				t.Errorf("GET: %+v", a)
			}
			head, want := do(t, "HEAD", s.URL+goodPath), 405
			if name == "GetHead" {
				want = 200
			}
			if head.status != want {
				t.Errorf("HEAD: %d, want %d", head.status, want)
			}
			if m := s.store.mark(t, "acme"); m.Token != 11 {
				t.Errorf("mark %+v", m)
			}
		})
	}
}

// TestRejectDropsTheOtherAnswer: what a handler has set for the answer that it
// does not give must not describe the refusal.
func TestRejectDropsTheOtherAnswer(t *testing.T) {
	fence := newFence(newStore(), literal("r"), nil)
	w := httptest.NewRecorder()
	for _, name := range []string{"Content-Length", "Content-Encoding", "Content-Range", "ETag", "Last-Modified", "X-Trace"} {
		w.Header().Set(name, "1")
	}
	fence.Reject(w, newRequest("", "5", ""), guard.ErrStale)
	if h := w.Result().Header; len(h) != 4 || h.Get("X-Trace") != "1" {
		t.Errorf("header %v", h)
	}
	// The two fields do not share memory: adding to one must not change the other.
	w.Header().Add("Content-Type", "x")
	if w.Header().Get("Cache-Control") != "no-store" {
		t.Errorf("header %v", w.Header())
	}
}
