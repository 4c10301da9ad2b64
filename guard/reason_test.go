package guard_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
)

// pairs is the table of the documentation, written a second time.
var pairs = map[guard.Reason]error{
	guard.ReasonStale:          guard.ErrStale,
	guard.ReasonSpent:          guard.ErrSpent,
	guard.ReasonConflict:       guard.ErrConflict,
	guard.ReasonNotFound:       guard.ErrNotFound,
	guard.ReasonMarkAhead:      guard.ErrMarkAhead,
	guard.ReasonUnfenced:       guard.ErrUnfenced,
	guard.ReasonInvalid:        guard.ErrInvalid,
	guard.ReasonMissing:        guard.ErrMissing,
	guard.ReasonMisdirected:    guard.ErrMisdirected,
	guard.ReasonSetup:          guard.ErrSetup,
	guard.ReasonUnavailable:    guard.ErrUnavailable,
	guard.ReasonOutcomeUnknown: guard.ErrOutcomeUnknown,
	guard.ReasonLeaseLost:      guard.ErrLeaseLost,
}

func TestReasonsAreTotalAndSymmetric(t *testing.T) {
	all := guard.Reasons()
	if len(all) != len(pairs) {
		t.Errorf("Reasons has %d entries, the table %d", len(all), len(pairs))
	}
	for _, r := range all {
		want, ok := pairs[r]
		if !ok {
			t.Errorf("%s is not in the table", r)
		}
		if r.Err() != want {
			t.Errorf("%s.Err() = %v; want %v", r, r.Err(), want)
		}
		for _, err := range []error{r.Err(), fmt.Errorf("saving: %w", r.Err()), errors.Join(errors.New("x"), r.Err())} {
			if got := guard.ReasonOf(err); got != r {
				t.Errorf("ReasonOf(%v) = %s; want %s", err, got, r)
			}
		}
	}
	// What Reasons returns is a copy.
	all[0] = "spoilt"
	if slices.Contains(guard.Reasons(), "spoilt") {
		t.Error("a caller can change the table")
	}
}

func TestReasonsWithoutSentinel(t *testing.T) {
	for _, r := range []guard.Reason{guard.ReasonNone, guard.ReasonOther, "no reason"} {
		if err := r.Err(); err != nil {
			t.Errorf("%q.Err() = %v; want nil", r, err)
		}
	}
	if r := guard.ReasonOf(nil); r != guard.ReasonNone {
		t.Errorf("ReasonOf(nil) = %s", r)
	}
	for _, err := range []error{errors.New("stale fencing token"), context.Canceled, &guard.RejectedError{}, &guard.FailedError{}} {
		if r := guard.ReasonOf(err); r != guard.ReasonOther {
			t.Errorf("ReasonOf(%v) = %s; want %s", err, r, guard.ReasonOther)
		}
	}
}

// TestUnknownOutcomeWins: an error that wraps several sentinels is reported as
// the one that promises least, in whichever order they were wrapped.
func TestUnknownOutcomeWins(t *testing.T) {
	for r, err := range pairs {
		for _, joined := range []error{errors.Join(err, guard.ErrOutcomeUnknown), errors.Join(guard.ErrOutcomeUnknown, err)} {
			if got := guard.ReasonOf(joined); got != guard.ReasonOutcomeUnknown {
				t.Errorf("ReasonOf(unknown outcome and %s) = %s", r, got)
			}
		}
		// Unavailable promises that nothing was written: any other reason says
		// more than that.
		if got := guard.ReasonOf(errors.Join(guard.ErrUnavailable, err)); got != r {
			t.Errorf("ReasonOf(unavailable and %s) = %s", r, got)
		}
	}
	if got := guard.ReasonOf(errors.Join(guard.ErrStale, guard.ErrConflict)); got != guard.ReasonConflict {
		t.Errorf("ReasonOf(stale and conflict) = %s; the alarm must not be lost", got)
	}
	if got := guard.ReasonOf(guard.Missing("token")); got != guard.ReasonMissing {
		t.Errorf("ReasonOf(missing) = %s", got)
	}
	if got := guard.ReasonOf(guard.OutcomeUnknown("raise", guard.Claim{}, guard.ErrStale)); got != guard.ReasonOutcomeUnknown {
		t.Errorf("ReasonOf(unknown outcome because of stale) = %s", got)
	}
}

// TestReasonFor: an error counts as far as it speaks of the claim at hand. ReasonOf, which
// does not ask, is the control.
func TestReasonFor(t *testing.T) {
	own := guard.Claim{Resource: "r", Token: 5, LeaseID: "l"}
	for _, other := range []guard.Claim{own, {Resource: "other", Token: 5, LeaseID: "l"}, {Resource: "r", Token: 6, LeaseID: "l"}, {Resource: "r", Token: 5}, {}} {
		for _, reason := range guard.Reasons() {
			said := map[string]error{"rejected": &guard.RejectedError{Reason: reason, Claim: other}, "failed": &guard.FailedError{Reason: reason, Claim: other}}
			if reason == guard.ReasonLeaseLost {
				said = map[string]error{"lost": &guard.LostError{Claim: other}}
			}
			want := guard.ReasonOther
			if other == own && reason != guard.ReasonMissing && reason != guard.ReasonMisdirected {
				want = reason
			}
			for kind, err := range said {
				for _, err := range []error{err, fmt.Errorf("saving: %w", err), errors.Join(errors.New("x"), err)} {
					if got := guard.ReasonFor(own, err); got != want || guard.ReasonOf(err) != reason {
						t.Errorf("%s as %s of %+v is %s, want %s; control %s", reason, kind, other, got, want, guard.ReasonOf(err))
					}
				}
				elsewhere := fmt.Errorf("saving: %w", &guard.ElsewhereError{Err: err})
				if got := guard.ReasonFor(own, elsewhere); got != guard.ReasonOther || guard.ReasonOf(elsewhere) != reason {
					t.Errorf("%s, said elsewhere, is %s; control %s", reason, got, guard.ReasonOf(elsewhere))
				}
			}
		}
	}
	for err, want := range map[error]guard.Reason{
		nil: guard.ReasonNone, guard.ErrStale: guard.ReasonStale, guard.ErrNotFound: guard.ReasonNotFound, guard.Missing("tenant"): guard.ReasonOther,
		guard.Unavailable("read mark", guard.Claim{Resource: "r"}, nil):                                             guard.ReasonUnavailable,
		guard.OutcomeUnknown("commit", own, &guard.ElsewhereError{Err: guard.ErrStale}):                             guard.ReasonOutcomeUnknown,
		guard.Unavailable("admit", own, &guard.LostError{Claim: own, Cause: errors.New("the deadline has passed")}): guard.ReasonLeaseLost,
	} {
		if got := guard.ReasonFor(own, err); got != want {
			t.Errorf("%v is %q, want %q", err, got, want)
		}
	}
	// A lease that was over before anything was sent has one text.
	lost := &guard.LostError{Claim: own}
	if err := guard.Unavailable("admit", own, fmt.Errorf("context: %w", lost)); err != error(lost) {
		t.Errorf("%v", err)
	}
}

// TestOutcomesAreTotal: every reason has one outcome, and only success is admitted.
func TestOutcomesAreTotal(t *testing.T) {
	counts := map[guard.Outcome]int{}
	for _, reason := range append(guard.Reasons(), guard.ReasonOther, guard.ReasonNone, "novel") {
		counts[reason.Outcome()]++
	}
	if counts[guard.Admitted] != 1 || counts[guard.LostLease] != 1 || counts[guard.Rejected] != 9 || counts[guard.Failed] != 5 {
		t.Errorf("%v", counts)
	}
}

// TestCurrentClaim: a context's claim may change, and be none.
func TestCurrentClaim(t *testing.T) {
	claim, ok := guard.Claim{}, false
	ctx := guard.WithCurrentClaim(guard.WithClaim(t.Context(), guard.Claim{Resource: "outer", Token: 1}), func() (guard.Claim, bool) { return claim, ok })
	if got, found := guard.ClaimFrom(ctx); found || got != (guard.Claim{}) {
		t.Errorf("before the first: %+v, %v", got, found)
	}
	claim, ok = guard.Claim{Resource: "r", Token: 5}, true
	if got, found := guard.ClaimFrom(ctx); !found || got != claim {
		t.Errorf("%+v, %v", got, found)
	}
}
