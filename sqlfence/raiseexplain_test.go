package sqlfence

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
)

// TestP6LooksOfARaise: what a look beside a raise was refused with decides only what
// it can: a claim that is stale by then is stale, and not unavailable; an unknown
// outcome stays unknown, and a role that may not look does not make a setup error of
// a lock timeout.
func TestP6LooksOfARaise(t *testing.T) {
	claim := claimOf("r", 5)
	stale := &guard.RejectedError{Reason: guard.ReasonStale, Claim: claim, Mark: guard.Mark{Token: 6}}
	denied := guard.Setup("look", claim, state(pgerr.Privilege))
	unavailable, unknown := guard.Unavailable("raise", claim, state(pgerr.LockTimeout)), guard.OutcomeUnknown("raise", claim, errInjected)
	for _, c := range []struct {
		raise, look error
		want        guard.Reason
		never       []error
	}{
		{unavailable, stale, guard.ReasonStale, []error{guard.ErrUnavailable}},
		{unknown, stale, guard.ReasonOutcomeUnknown, []error{guard.ErrStale}},
		{unavailable, denied, guard.ReasonUnavailable, []error{guard.ErrSetup}},
		{unknown, denied, guard.ReasonOutcomeUnknown, []error{guard.ErrSetup}},
		{nil, stale, guard.ReasonNone, nil},
	} {
		err := (&waitingRaise[pgx.Tx]{refused: c.look}).explain(c.raise)
		if guard.ReasonOf(err) != c.want {
			t.Errorf("%v with a look of %v: got %v, want %s", c.raise, c.look, err, c.want)
		}
		for _, never := range c.never {
			if errors.Is(err, never) {
				t.Errorf("%v is also %v", err, never)
			}
		}
	}
}
