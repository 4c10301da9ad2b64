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
