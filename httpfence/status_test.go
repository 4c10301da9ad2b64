package httpfence

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
)

// wireStatuses is the documented table, written out a second time on purpose.
var wireStatuses = map[guard.Reason]int{
	guard.ReasonMissing: 428, guard.ReasonInvalid: 400, guard.ReasonMisdirected: 400,
	guard.ReasonStale: 412, guard.ReasonSpent: 412, guard.ReasonConflict: 412, guard.ReasonMarkAhead: 412,
	guard.ReasonNotFound: 404, guard.ReasonUnfenced: 409, guard.ReasonUnavailable: 503, guard.ReasonSetup: 500,
	guard.ReasonOutcomeUnknown: 500, guard.ReasonLeaseLost: 500, guard.ReasonOther: 500,
}

// rejections are the reasons for which the error is a *guard.RejectedError: a claim
// was compared. Whoever looks for that type must not find it in a failure.
var rejections = []guard.Reason{
	guard.ReasonStale, guard.ReasonSpent, guard.ReasonConflict, guard.ReasonMarkAhead, guard.ReasonNotFound, guard.ReasonUnfenced,
}

// TestStatusTable goes through the table in both directions: error to response by
// Relay, response to error by ErrorFrom.
func TestStatusTable(t *testing.T) {
	all := append(guard.Reasons(), guard.ReasonOther)
	if got := slices.Sorted(maps.Keys(wireStatuses)); !slices.Equal(got, slices.Sorted(slices.Values(all))) {
		t.Fatalf("the table has %v, package guard %v", got, all)
	}
	if len(rows) != len(all) {
		t.Fatalf("%d rows for %d reasons", len(rows), len(all))
	}
	fence := newFence(newStore(), literal("r"), nil)
	types := map[any]bool{}
	for _, reason := range all {
		t.Run(string(reason), func(t *testing.T) {
			err := reason.Err()
			if err == nil {
				err = errors.New("a driver's error")
			}
			r := httptest.NewRequest("POST", "/acct/a/close", nil)
			r = r.WithContext(guard.WithClaim(r.Context(), guard.Claim{Resource: "r", Token: 5}))
			w := httptest.NewRecorder()
			fence.Relay(w, r, fmt.Errorf("wrapped: %w", err))

			resp := w.Result()
			resp.Request = r
			if resp.StatusCode != wireStatuses[reason] {
				t.Errorf("status %d, want %d", resp.StatusCode, wireStatuses[reason])
			}
			h := resp.Header
			if h.Get("Content-Type") != "application/problem+json" || h.Get("Cache-Control") != "no-store" {
				t.Errorf("header %v", h)
			}
			if retry := h.Get("Retry-After"); (retry == "2") != (reason == guard.ReasonUnavailable) {
				t.Errorf("Retry-After %q", retry)
			}
			back := ErrorFrom(resp)
			if guard.ReasonOf(back) != reason {
				t.Errorf("came back as %v", back)
			}
			if sentinel := reason.Err(); sentinel != nil && !errors.Is(back, sentinel) {
				t.Errorf("%v is not %v", back, sentinel)
			}
			var rejected *guard.RejectedError
			if is := errors.As(back, &rejected); is != slices.Contains(rejections, reason) {
				t.Errorf("%v is a rejection: %t", back, is)
			}
			if reason == guard.ReasonMissing && !errors.Is(back, guard.ErrInvalid) {
				t.Errorf("%v is not invalid", back)
			}
			var failed *guard.FailedError
			if errors.As(back, &failed) && (failed.Claim.Token != 5 || failed.Op != "POST /acct/a/close") {
				t.Errorf("claim %+v, op %q", failed.Claim, failed.Op)
			}
			if errors.As(back, &rejected) && (rejected.Claim.Token != 5 || rejected.Mark != guard.Mark{}) {
				t.Errorf("claim %+v, mark %+v", rejected.Claim, rejected.Mark)
			}
			a := read(t, resp)
			want := "tag:fencepost-go.github.io,2026:problem/" + string(reason)
			if a.problem["type"] != want || a.problem["status"] != float64(wireStatuses[reason]) || types[want] {
				t.Errorf("problem %v, want the type %q, its own", a.problem, want)
			}
			types[want] = true
			for _, member := range []string{"title", "detail"} {
				if s, _ := a.problem[member].(string); s == "" {
					t.Errorf("no %s", member)
				}
			}
		})
	}
}

// TestUnknownErrorsAreNeverSuccess covers what the table has no row for.
func TestUnknownErrorsAreNeverSuccess(t *testing.T) {
	fence := newFence(newStore(), literal("r"), nil)
	for _, err := range []error{nil, errors.New("x"), &guard.RejectedError{Reason: "novel"}, &guard.RejectedError{}} {
		w := httptest.NewRecorder()
		fence.Reject(w, httptest.NewRequest("POST", "/", nil), err)
		relayed := httptest.NewRecorder()
		fence.Relay(relayed, httptest.NewRequest("POST", "/", nil), err)
		if w.Code != http.StatusInternalServerError || relayed.Code != w.Code {
			t.Errorf("%v: status %d, relayed %d", err, w.Code, relayed.Code)
		}
	}
}
