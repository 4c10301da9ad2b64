package httpfence_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/httpfence"
	"github.com/fencepost-go/fencepost/sqlfence"
	"github.com/jackc/pgx/v5/pgxpool"
)

// TestRequestsAreReportedOnce: if one observer watches a fence and the
// sqlfence.DB that is its store and its transactor, each request gives one
// event, from the fence. The control is the handler's own transaction, which
// the fence does not know about.
func TestRequestsAreReportedOnce(t *testing.T) {
	var events []guard.Event
	observer := guard.ObserverFunc(func(_ context.Context, e guard.Event) { events = append(events, e) })
	pool := guard.Must(pgxpool.New(t.Context(), ledger(t)))
	defer pool.Close()
	db, err := sqlfence.Pgx(pool, &sqlfence.Options{Observer: observer})
	if err != nil {
		t.Fatal(err)
	}
	resource := func(*http.Request) (string, error) { return "r", nil }
	fence, err := httpfence.NewTx(db.Transactor(), resource, &httpfence.Options{Observer: observer, InsecureAnyResource: true})
	if err != nil {
		t.Fatal(err)
	}
	nothing := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	for _, c := range []struct {
		what    string
		token   string
		handler http.Handler
		reason  guard.Reason
	}{
		{"Raise", "5", http.HandlerFunc(fence.Raise), guard.ReasonNone},
		{"admitted", "5", fence.Admit(nothing), guard.ReasonNone},
		{"refused by Admit", "4", fence.Admit(nothing), guard.ReasonStale},
		{"InTx", "5", fence.InTx(nothing), guard.ReasonNone},
		{"refused by InTx", "4", fence.InTx(nothing), guard.ReasonStale},
		{"refused without a token", "", fence.Admit(nothing), guard.ReasonMissing},
	} {
		events = nil
		r := httptest.NewRequest(http.MethodPost, "/", http.NoBody)
		if c.token != "" {
			r.Header.Set(httpfence.TokenHeader, c.token)
			r.Header.Set(httpfence.LeaseHeader, "lease-"+c.token)
		}
		c.handler.ServeHTTP(httptest.NewRecorder(), r)
		if len(events) != 1 || events[0].Surface != guard.SurfaceHTTP || events[0].Reason != c.reason {
			t.Errorf("%s: events %+v", c.what, events)
		}
	}
	events = nil
	if err := db.Raise(t.Context(), guard.Claim{Resource: "r", Token: 4}); err == nil || len(events) != 1 || events[0].Surface != guard.SurfaceSQL {
		t.Errorf("control: %v, events %+v", err, events)
	}
}
