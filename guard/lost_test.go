package guard_test

import (
	"context"
	"errors"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
)

type testLease struct {
	valid bool
	err   error
}

func (*testLease) Claim() guard.Claim { return guard.Claim{Resource: "r", Token: 7, LeaseID: "l"} }
func (l *testLease) Valid() bool      { return l.valid }
func (l *testLease) Err() error       { return l.err }

// plainLease has no method Err.
type plainLease struct{ guard.Lease }

// TestLost: a lost lease is one type with its facts, whoever knows of it. The
// controls are a lease that is valid and a claim without a lease.
func TestLost(t *testing.T) {
	claim := (*testLease)(nil).Claim()
	over, released := errors.New("the hold ended"), errors.New("lease released")
	own := &guard.LostError{Claim: claim, Cause: errors.New("the deadline passed"), LastRenewal: errors.New("no route")}
	other := &guard.LostError{Claim: guard.Claim{Resource: "other", Token: 1}}
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(over)
	for name, c := range map[string]struct {
		ctx   context.Context
		cause error // nil: any
		same  error
	}{
		"the lease's own error":  {guard.WithLease(ended, &testLease{err: own}), own.Cause, own},
		"another reason":         {guard.WithLease(t.Context(), &testLease{err: released}), released, nil},
		"another lease's error":  {guard.WithLease(t.Context(), &testLease{err: other}), other, nil},
		"nothing known":          {guard.WithLease(t.Context(), plainLease{&testLease{}}), nil, nil},
		"the end of the context": {guard.WithLease(ended, plainLease{&testLease{}}), over, nil},
	} {
		err := guard.Lost(c.ctx)
		var lost *guard.LostError
		if !errors.Is(err, guard.ErrLeaseLost) || !errors.As(err, &lost) || lost.Claim != claim || !errors.Is(err, c.cause) && c.cause != nil {
			t.Errorf("%s: %v", name, err)
		}
		if c.same != nil && err != c.same || errors.As(err, new(*guard.RejectedError)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if want := `fencepost: lease lost: token 7 for "r": the deadline passed; the last one: no route`; own.Error() != want {
		t.Errorf("%q, want %q", own, want)
	}
	for _, ctx := range []context.Context{t.Context(), ended, guard.WithClaim(ended, claim), guard.WithLease(ended, &testLease{valid: true, err: own})} {
		if err := guard.Lost(ctx); err != nil {
			t.Error(err)
		}
	}
}
