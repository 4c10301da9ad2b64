package guard

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
)

// TestRaiseAll: the mark of every place is the claim after it, or the error says of
// each place what became of it.
func TestRaiseAll(t *testing.T) {
	claim := Claim{Resource: "r", Token: 7, LeaseID: "l"}
	memory := func() (Place, *Memory) {
		m := NewMemory()
		return Place{"memory", func(ctx context.Context, c Claim) error { _, err := m.Admit(ctx, c); return err }}, m
	}
	good, marks := memory()
	failing := func(err error) Place {
		return Place{"other", func(context.Context, Claim) error { return err }}
	}
	last, lastMarks := memory()
	last.Name = "last"
	for _, c := range []struct {
		err    error
		reason Reason
		tried  bool // the last place
	}{
		{nil, ReasonNone, true},
		{Unavailable("raise", claim, errors.New("down")), ReasonUnavailable, true},
		{OutcomeUnknown("raise", claim, errors.New("cut")), ReasonOutcomeUnknown, true},
		{Setup("raise", claim, errors.New("no bucket")), ReasonSetup, true},
		{errors.New("a constraint"), ReasonOther, true},
		{&RejectedError{Reason: ReasonStale, Claim: claim, Mark: Mark{Token: 9}}, ReasonStale, false},
		{&RejectedError{Reason: ReasonConflict, Claim: claim}, ReasonConflict, false},
		{&RejectedError{Reason: ReasonMarkAhead, Claim: claim}, ReasonMarkAhead, false},
		{&LostError{Claim: claim}, ReasonLeaseLost, false},
	} {
		claim.Token++
		err := RaiseAll(t.Context(), claim, good, failing(c.err), last)
		if ReasonOf(err) != c.reason || c.err != nil && !errors.Is(err, c.err) {
			t.Errorf("%v: got %v", c.err, err)
		}
		first, _ := marks.Mark(t.Context(), "r")
		end, _ := lastMarks.Mark(t.Context(), "r")
		if first.Token != claim.Token || (end.Token == claim.Token) != c.tried {
			t.Errorf("%v: the marks are %v and %v", c.err, first, end)
		}
		var all *RaiseAllError
		if c.err == nil {
			continue
		}
		if !errors.As(err, &all) || all.Claim != claim || len(all.Failed) != 1 || all.Failed[0].Name != "other" ||
			slices.Contains(all.Raised, "last") != c.tried || slices.Contains(all.NotTried, "last") == c.tried || all.Raised[0] != "memory" {
			t.Errorf("%v: %+v", c.err, all)
		}
		for _, says := range []string{`"r"`, `"other" failed: `, `raised: "memory"`, `"last"`} {
			if !strings.Contains(err.Error(), says) {
				t.Errorf("%q does not say %s", err, says)
			}
		}
	}
	for _, bad := range [][]Place{nil, {good, {"", good.Raise}}, {{"a", nil}}} {
		if err := RaiseAll(t.Context(), claim, bad...); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	claim.Token = NoToken
	if err := RaiseAll(t.Context(), claim, failing(nil)); !errors.Is(err, ErrInvalid) {
		t.Errorf("no token: %v", err)
	}
}
