package httpfence

import (
	"context"
	"net/http/httptest"
	"testing"

	"github.com/go-chi/chi/v5"

	"github.com/fencepost-go/fencepost/guard"
)

// TestRaise: after the raise the old holder is refused at every surface of the
// resource, before the new one has written anything.
func TestRaise(t *testing.T) {
	var events []guard.Event
	s := &service{store: newStore()}
	s.fence = newFence(s.store, ChiParam("id"), &Options{
		Observer: guard.ObserverFunc(func(_ context.Context, e guard.Event) { events = append(events, e) }),
	})
	router := chi.NewRouter()
	router.With(s.fence.Admit).Post("/acct/{id}/close", s.handler(nil).ServeHTTP)
	router.HandleFunc("/acct/{id}/raise", s.fence.Raise)
	s.Server = httptest.NewServer(router)
	t.Cleanup(s.Close)
	raise := func(method, token, lease string) answer {
		return do(t, method, s.URL+"/acct/acme/raise", TokenHeader, token, LeaseHeader, lease)
	}

	if a := s.post(t, "acme", "10", "a"); a.status != 200 {
		t.Fatal(a)
	}
	// The control: without a raise the old holder still gets through.
	if a := s.post(t, "acme", "10", "a"); a.status != 200 {
		t.Fatalf("control: %+v", a)
	}
	for range 2 { // idempotent
		a := raise("POST", "11", "b")
		if a.status != 204 || a.body != "" || a.header.Get("Cache-Control") != "no-store" {
			t.Fatalf("%+v", a)
		}
		if e := events[len(events)-1]; e.Op != guard.OpRaise || e.Surface != "http" || e.Reason != "" || e.Claim.Token != 11 {
			t.Errorf("event %+v", e)
		}
	}
	if a := s.post(t, "acme", "10", "a"); a.status != 412 || a.reason() != "stale" {
		t.Errorf("%+v", a)
	}
	invoked := s.invoked.Load()
	for _, c := range []struct {
		method, token, lease string
		status               int
		reason               string
	}{
		{"POST", "10", "a", 412, "stale"}, {"POST", "11", "a", 412, "conflict"}, {"PUT", "12", "b", 405, ""}, {"POST", "+12", "b", 400, "invalid"}, {"DELETE", "12", "b", 405, ""},
		{"GET", "12", "b", 405, ""}, {"HEAD", "12", "b", 405, ""}, {"OPTIONS", "12", "b", 405, ""}, {"TRACE", "12", "b", 405, ""},
	} {
		a := raise(c.method, c.token, c.lease)
		if a.status != c.status || a.reason() != c.reason || (a.header.Get("Allow") == "POST") != (c.status == 405) {
			t.Errorf("%+v: %+v", c, a)
		}
	}
	if m := s.store.mark(t, "acme"); m != (guard.Mark{Token: 11, LeaseID: "b"}) || s.invoked.Load() != invoked {
		t.Errorf("mark %+v, %d invocations", m, s.invoked.Load()-invoked)
	}
	s.store.failWith(guard.Unavailable("admit", guard.Claim{}, nil))
	if a := raise("POST", "12", "b"); a.status != 503 {
		t.Errorf("store down: %+v", a)
	}
}
