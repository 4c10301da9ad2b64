package sqlfence

import (
	"context"
	"errors"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
)

type testLease struct {
	claim guard.Claim
	valid bool
}

func (l *testLease) Claim() guard.Claim { return l.claim }
func (l *testLease) Valid() bool        { return l.valid }

// TestContextOfALostLease (P6): a context that is over with its lease is
// ErrLeaseLost, not an unavailable store. The control is one whose lease is good.
func TestContextOfALostLease(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		over := errors.New("the hold ended")
		lease := &testLease{claim: claimOf("r", 5), valid: true}
		ctx, cancel := context.WithCancelCause(guard.WithLease(t.Context(), lease))
		cancel(over)
		transactor, _ := e.transactor()
		for _, want := range []guard.Reason{guard.ReasonUnavailable, guard.ReasonLeaseLost} {
			for what, err := range map[string]error{
				"InTx":       e.db.fenced(ctx, lease.claim, func(context.Context, testTx) error { return nil }),
				"Raise":      e.db.Raise(ctx, lease.claim),
				"InsecureTx": transactor.InsecureTx(ctx, func(context.Context) error { return nil }),
			} {
				if guard.ReasonOf(err) != want || !errors.Is(err, over) {
					t.Errorf("%s: %v, want %s with the cause", what, err, want)
				}
			}
			lease.valid = false
		}
	})
}
