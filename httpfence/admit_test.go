package httpfence

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
)

// TestP1NoStaleRequest: an older token is refused after a newer one was
// admitted, and so is the newer one under another lease ID. The control sends the
// same to the same handler without the guard.
func TestP1NoStaleRequest(t *testing.T) {
	for name, guarded := range map[string]func(*service, http.Handler) http.Handler{"Admit": (*service).admit, "InTx": (*service).inTx} {
		s := newServiceAt(t, guarded, ChiParam("id"), nil)
		for _, step := range []struct {
			token, lease string
			status       int
			reason       string
		}{
			{"10", "a", 200, ""}, {"10", "a", 200, ""}, {"11", "b", 200, ""},
			{"10", "a", 412, "stale"}, {"11", "a", 412, "conflict"}, {"11", "", 412, "conflict"},
			{"11", "b", 200, ""},
		} {
			before := s.invoked.Load()
			a := s.post(t, "acme", step.token, step.lease)
			if a.status != step.status || a.reason() != step.reason {
				t.Errorf("%s, %+v: %d %s", name, step, a.status, a.body)
			}
			if n := s.invoked.Load() - before; (n == 1) != (step.status == 200) {
				t.Errorf("%s, %+v: %d invocations", name, step, n)
			}
			if want := (guard.Claim{Resource: "acme", Token: guard.Token(10 + step.token[1] - '0'), LeaseID: step.lease}); step.status == 200 && *s.claim.Load() != want {
				t.Errorf("%s: claim in the context %+v, want %+v", name, *s.claim.Load(), want)
			}
		}
		if m := s.store.mark(t, "acme"); m != (guard.Mark{Token: 11, LeaseID: "b"}) {
			t.Errorf("%s: mark %+v", name, m)
		}
		if a := s.post(t, "other", "10", "a"); a.status != 200 {
			t.Errorf("%s, another resource: %d %s", name, a.status, a.body)
		}
		if n := len(s.work.committed); name == "InTx" && n != 5 {
			t.Errorf("%d transactions were committed", n)
		}
	}

	t.Run("control without the guard", func(t *testing.T) {
		s := &service{store: newStore()}
		s.Server = httptest.NewServer(s.handler(nil))
		t.Cleanup(s.Close)
		for _, token := range []string{"11", "10"} {
			if a := s.post(t, "acme", token, "a"); a.status != 200 {
				t.Fatalf("token %s: %d", token, a.status)
			}
		}
		if s.invoked.Load() != 2 {
			t.Error("the control does not show a stale request getting through")
		}
	})
}

// TestP1Overtaken: a newer holder that comes at the last moment is noticed: the
// store's own comparison decides, not one that was made before. In the control
// the claim that comes is the request's own.
func TestP1Overtaken(t *testing.T) {
	for _, newest := range []guard.Token{5, 6} {
		for _, raise := range []bool{false, true} {
			handled := false
			store := newStore()
			store.before(func(ctx context.Context) error {
				_, err := store.Store.Admit(ctx, guard.Claim{Resource: "r", Token: newest})
				return err
			})
			fence := newFence(store, byPath, nil)
			h := fence.Admit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { handled = true }))
			if raise {
				h = http.HandlerFunc(fence.Raise)
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, newRequest("r", "5", ""))
			if stale := newest > 5; stale != (w.Code == 412) || handled != (!stale && !raise) {
				t.Errorf("the mark is %v, raise: %t: status %d, handled: %t", newest, raise, w.Code, handled)
			}
		}
	}
}

func TestMethods(t *testing.T) {
	all := []string{"GET", "HEAD", "OPTIONS", "TRACE", "POST", "PUT", "PATCH", "DELETE"}
	for name, c := range map[string]struct {
		opts *Options
		free []string
	}{
		"default":     {nil, []string{"GET", "HEAD", "OPTIONS", "TRACE"}},
		"none":        {&Options{GuardAllMethods: true}, nil},
		"only DELETE": {&Options{UnguardedMethods: []string{"DELETE"}}, []string{"DELETE"}},
		"lower case":  {&Options{UnguardedMethods: []string{"get"}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := newService(t, c.opts)
			for _, method := range all {
				before := s.invoked.Load()
				a := do(t, method, s.URL+goodPath)
				free := strings.Contains(" "+strings.Join(c.free, " ")+" ", " "+method+" ")
				if (a.status == 200) != free || (s.invoked.Load() > before) != free || (!free && a.status != 428) {
					t.Errorf("%s: %d, want free %v", method, a.status, free)
				}
				if free && s.claim.Load() != nil {
					t.Errorf("%s has a claim that nobody checked", method)
				}
			}
		})
	}
}

func TestStoreFailures(t *testing.T) {
	s := newService(t, nil)
	for _, c := range []struct {
		err    error
		status int
		reason string
	}{
		{guard.Unavailable("admit", guard.Claim{}, errors.New("secret dsn")), 503, "unavailable"},
		{guard.OutcomeUnknown("admit", guard.Claim{}, io.ErrUnexpectedEOF), 500, "outcome_unknown"},
		{errors.Join(guard.ErrUnavailable, guard.ErrOutcomeUnknown), 500, "outcome_unknown"},
		{guard.ErrMarkAhead, 412, "mark_ahead"},
		{guard.ErrUnfenced, 409, "unfenced"},
		{guard.ErrNotFound, 404, "not_found"},
		{context.DeadlineExceeded, 500, "other"},
		{errors.New("secret"), 500, "other"},
	} {
		s.store.failWith(c.err)
		a := s.post(t, "acme", "5", "")
		if a.status != c.status || a.reason() != c.reason || strings.Contains(a.body, "secret") {
			t.Errorf("%v: %d %s", c.err, a.status, a.body)
		}
		if retry := a.header.Get("Retry-After"); (retry == "2") != (c.status == 503) {
			t.Errorf("%v: Retry-After %q", c.err, retry)
		}
	}
	if s.invoked.Load() != 0 {
		t.Error("the handler was invoked")
	}
}

func TestMarkIsDisclosedOnlyWhenAsked(t *testing.T) {
	for _, disclose := range []bool{false, true} {
		s := newService(t, &Options{DiscloseMark: disclose})
		s.post(t, "acme", "9007199254740993", "holder-of-the-mark")
		for _, offered := range [][2]string{{"7654321", ""}, {"9007199254740993", "x"}} {
			a := s.post(t, "acme", offered[0], offered[1])
			if a.status != 412 || strings.Contains(a.body+fmt.Sprint(a.header), "holder-of-the-mark") {
				t.Errorf("%+v", a)
			}
			if shown := strings.Contains(a.body+fmt.Sprint(a.header), "9007199254740993"); shown != disclose {
				t.Errorf("disclose %v: %s", disclose, a.body)
			}
			if disclose && (a.problem["mark"] != "9007199254740993" || a.problem["token"] != offered[0]) {
				t.Errorf("%s", a.body)
			}
		}
		// Nothing was compared, so there is nothing to disclose.
		if a := s.post(t, "acme", "0", ""); strings.Contains(a.body, "mark\"") {
			t.Errorf("%s", a.body)
		}
	}
}

// TestRejectDropsTheOtherAnswer: fields that a handler has set for a response
// that it does not send must not describe the refusal.
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
}
