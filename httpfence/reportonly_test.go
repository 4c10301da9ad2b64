package httpfence

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-chi/chi/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
)

// told is an observer that sends what it is told.
type told chan guard.Event

func (c told) Observe(_ context.Context, e guard.Event) { c <- e }

// TestReportOnly: nobody is refused, the handler gets no claim, and the observer and the
// log learn who would have been refused.
func TestReportOnly(t *testing.T) {
	events, lines := make(told, 10), new(lockedLog)
	var hooks atomic.Int64
	s := newServiceAt(t, func(s *service, next http.Handler) http.Handler { return s.fence.InsecureReportOnly(next) }, ChiParam("id"), &Options{
		Logger: slog.New(slog.NewTextHandler(lines, nil)), Observer: events,
		OnReject: func(http.ResponseWriter, *http.Request, *Rejection) { hooks.Add(1) },
	})
	for _, c := range []struct {
		token, lease string
		reason       guard.Reason
	}{
		{"10", "a", ""}, {"11", "b", ""}, {"10", "a", "stale"}, {"11", "c", "conflict"}, {"+1", "", "invalid"}, {"", "", "missing"},
	} {
		var header []string
		if c.token != "" {
			header = append(header, TokenHeader, c.token, LeaseHeader, c.lease)
		}
		if a := do(t, "POST", s.URL+goodPath, header...); a.status != 200 || a.body != "done" || s.claim.Load() != nil {
			t.Errorf("%+v: %d %s, claim %v", c, a.status, a.body, s.claim.Load())
		}
		e := testkit.Receive(t, "the event", events)
		if e.Op != guard.OpAdmit || e.Surface != "http" || e.Reason != c.reason || (e.Err == nil) != (c.reason == "") || e.ReportOnly != (c.reason != "") || e.Duration <= 0 {
			t.Errorf("%+v: event %+v", c, e)
		}
		if c.reason == "stale" && (e.Claim != guard.Claim{Resource: "acme", Token: 10, LeaseID: "a"} || e.Mark != guard.Mark{Token: 11, LeaseID: "b"}) {
			t.Errorf("event %+v", e)
		}
	}
	if n := strings.Count(lines.String(), "fencing_rejected"); n != 4 || strings.Count(lines.String(), "reportOnly=true") != n || hooks.Load() != 0 {
		t.Errorf("%d hooks, log %s", hooks.Load(), lines)
	}
}

// TestReportOnlyHoldsNobody: whatever does not respond, requests are handled, and how many
// were not compared is reported. The control is Admit, which waits.
func TestReportOnlyHoldsNobody(t *testing.T) {
	const extra = 6
	for _, stuck := range []string{"store", "Verify", "observer", "resource"} {
		gate := make(chan struct{})
		wait := func(what string) {
			if what == stuck {
				<-gate
			}
		}
		store := newStore()
		store.before(func(context.Context) error { wait("store"); return nil })
		events, handled := make(told, 4*shadows), atomic.Int64{}
		fence := newFence(store, func(r *http.Request) (string, error) { wait("resource"); return byPath(r) }, &Options{
			Verify:   func(guard.Claim, *http.Request) error { wait("Verify"); return nil },
			Observer: guard.ObserverFunc(func(ctx context.Context, e guard.Event) { wait("observer"); events.Observe(ctx, e) }),
		})
		next := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handled.Add(1); ok(w, r) })
		h := fence.InsecureReportOnly(next)
		for range shadows + extra {
			h.ServeHTTP(httptest.NewRecorder(), newRequest("r", "5", "a"))
		}
		if n := handled.Load(); n != shadows+extra {
			t.Errorf("%s: %d handled", stuck, n)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			fence.Admit(next).ServeHTTP(httptest.NewRecorder(), newRequest("r", "5", "a"))
		}()
		if handled.Load() != shadows+extra {
			t.Errorf("control, %s: Admit did not wait", stuck)
		}
		close(gate)
		testkit.Receive(t, "the control", done)
		skipped := 0
		for compared := 0; compared < shadows+1 || skipped < extra; {
			e := testkit.Receive(t, stuck+": the events", events)
			var n, all int
			if _, err := fmt.Sscanf(strings.TrimPrefix(fmt.Sprint(e.Err), "fencepost: admit: store unavailable: "), "%d requests were not compared, because %d others", &n, &all); err == nil && e.ReportOnly && e.Reason == guard.ReasonUnavailable {
				skipped += n
			} else if compared++; e.Reason != guard.ReasonNone {
				t.Fatalf("%s: %+v", stuck, e)
			}
		}
		if skipped != extra {
			t.Errorf("%s: %d skipped, want %d", stuck, skipped, extra)
		}
	}
}

// TestReportOnlyOutlivesTheHandler: a comparison that runs when the handler has returned
// reads its own request, though chi has given the route's context to another; and a hook
// that panics ends nothing but itself.
func TestReportOnlyOutlivesTheHandler(t *testing.T) {
	gate, events, lines := make(chan struct{}), make(told, 10), new(lockedLog)
	fence := newFence(newStore(), func(r *http.Request) (string, error) {
		<-gate
		name, err := ChiParam("id")(r)
		if name == "bug" {
			panic("a bug")
		}
		return name + r.Header.Get("X-Own"), err
	}, &Options{Observer: events, Logger: slog.New(slog.NewTextHandler(lines, nil))})
	router := chi.NewRouter()
	router.With(fence.InsecureReportOnly).Post("/acct/{id}/close", func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set("X-Own", "changed")
		ok(w, r)
	})
	for _, id := range []string{"a", "b", "bug", "c"} {
		r := httptest.NewRequest("POST", "/acct/"+id+"/close", nil)
		r.Header.Set(TokenHeader, "5")
		router.ServeHTTP(httptest.NewRecorder(), r)
	}
	close(gate)
	seen := map[string]bool{}
	for range 3 {
		seen[testkit.Receive(t, "the event", events).Claim.Resource] = true
	}
	if !seen["a"] || !seen["b"] || !seen["c"] {
		t.Errorf("compared %v", seen)
	}
	testkit.Eventually(t, "the line of the panic", func() bool {
		return strings.Contains(lines.String(), "fencing_failed") && strings.Contains(lines.String(), "a bug")
	})
}
