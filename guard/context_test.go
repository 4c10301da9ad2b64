package guard_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
)

type fakeLease struct{ claim guard.Claim }

func (l fakeLease) Claim() guard.Claim { return l.claim }
func (l fakeLease) Valid() bool        { return true }

type key struct{}

func TestClaimInContext(t *testing.T) {
	one := guard.Claim{Resource: "r", Token: 10, LeaseID: "a"}
	two := guard.Claim{Resource: "r", Token: 11, LeaseID: "b"}
	lease := fakeLease{claim: two}
	plain := context.WithValue(t.Context(), key{}, "value")

	for _, c := range []struct {
		name  string
		ctx   context.Context
		claim guard.Claim // zero: none
		lease guard.Lease
	}{
		{"plain", plain, guard.Claim{}, nil},
		{"claim", guard.WithClaim(plain, one), one, nil},
		{"lease", guard.WithLease(plain, lease), two, lease},
		{"claim in lease", guard.WithClaim(guard.WithLease(plain, lease), one), one, nil},
		{"lease in claim", guard.WithLease(guard.WithClaim(plain, one), lease), two, lease},
		{"claim in claim", guard.WithClaim(guard.WithClaim(plain, one), two), two, nil},
		{"through a value", context.WithValue(guard.WithLease(plain, lease), key{}, "value"), two, lease},
		{"through WithoutCancel", context.WithoutCancel(guard.WithClaim(plain, one)), one, nil},
	} {
		claim, ok := guard.ClaimFrom(c.ctx)
		if claim != c.claim || ok != (c.claim != guard.Claim{}) {
			t.Errorf("%s: ClaimFrom = %+v, %t; want %+v", c.name, claim, ok, c.claim)
		}
		got, ok := guard.LeaseFrom(c.ctx)
		if got != c.lease || ok != (c.lease != nil) {
			t.Errorf("%s: LeaseFrom = %+v, %t; want %+v", c.name, got, ok, c.lease)
		}
		if v := c.ctx.Value(key{}); v != "value" {
			t.Errorf("%s: another's value is %v", c.name, v)
		}
	}
}

// TestClaimContextKeepsTheRest: the carrier is a custom context, so the test
// shows that it passes on what contexts pass on.
func TestClaimContextKeepsTheRest(t *testing.T) {
	deadline := time.Now().Add(time.Hour)
	parent, cancel := context.WithDeadline(t.Context(), deadline)
	defer cancel()
	ctx := guard.WithClaim(parent, guard.Claim{Resource: "r", Token: 10})
	if d, ok := ctx.Deadline(); !ok || !d.Equal(deadline) {
		t.Errorf("Deadline = %v, %t", d, ok)
	}

	cause := errors.New("lost")
	outer, cancelOuter := context.WithCancelCause(ctx)
	inner, cancelInner := context.WithCancel(guard.WithLease(outer, fakeLease{}))
	defer cancelInner()
	if inner.Err() != nil {
		t.Fatal("ended too early")
	}
	cancelOuter(cause)
	testkit.Receive(t, "the cancel to arrive", inner.Done())
	if !errors.Is(inner.Err(), context.Canceled) || context.Cause(inner) != cause {
		t.Errorf("Err = %v, Cause = %v", inner.Err(), context.Cause(inner))
	}
	if ctx.Err() != nil {
		t.Errorf("the parent ended too: %v", ctx.Err())
	}
}

func TestClaimContextAllocatesOnce(t *testing.T) {
	parent := t.Context()
	claim := guard.Claim{Resource: "r", Token: 10, LeaseID: "a"}
	var ctx context.Context
	if n := testing.AllocsPerRun(1000, func() { ctx = guard.WithClaim(parent, claim) }); n != 1 {
		t.Errorf("WithClaim: %v allocations; want 1", n)
	}
	if n := testing.AllocsPerRun(1000, func() { _, _ = guard.ClaimFrom(ctx) }); n != 0 {
		t.Errorf("ClaimFrom: %v allocations; want none", n)
	}
}

func TestObserverAllocatesNothing(t *testing.T) {
	var sum guard.Token
	var o guard.Observer = guard.ObserverFunc(func(_ context.Context, e guard.Event) { sum += e.Claim.Token })
	ctx := t.Context()
	event := guard.Event{Op: guard.OpAdmit, Surface: "test", Claim: guard.Claim{Resource: "r", Token: 1}}
	if n := testing.AllocsPerRun(1000, func() { o.Observe(ctx, event) }); n != 0 {
		t.Errorf("%v allocations; want none", n)
	}
	if sum == 0 {
		t.Error("the function was not called")
	}
}
