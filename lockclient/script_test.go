package lockclient

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

// TestAcquireAnswers is the table of the outcomes of sequences of answers. A
// grant that nobody may have got is released, but never while the same lease ID
// may yet be granted: that release could free the later grant.
func TestAcquireAnswers(t *testing.T) {
	for _, test := range []struct {
		answers  []string
		wait     bool
		given    string
		token    guard.Token
		want     error
		released int
	}{
		{answers: []string{"granted"}, token: 1},
		{answers: []string{"free", "free", "granted"}, token: 3},
		{answers: []string{"free"}, want: guard.ErrUnavailable},
		{answers: []string{"held"}, want: ErrHeld},
		{answers: []string{"spent"}, want: ErrLeaseIDSpent, given: "mine"},
		{answers: []string{"in use"}, want: guard.ErrInvalid, given: "mine"},
		{answers: []string{"lost", "spent"}, want: ErrLeaseIDSpent, given: "mine"},
		{answers: []string{"lost", "in use"}, want: guard.ErrOutcomeUnknown, given: "mine"},
		{answers: []string{"down"}, want: guard.ErrUnavailable},
		{answers: []string{"lost", "granted"}, token: 2},
		{answers: []string{"lost", "down", "down", "granted"}, token: 4},
		{answers: []string{"lost", "held"}, want: ErrHeld, released: 1},
		{answers: []string{"lost", "held"}, want: guard.ErrOutcomeUnknown, given: "mine"},
		{answers: []string{"lost"}, want: guard.ErrOutcomeUnknown, released: 1},
		{answers: []string{"lost", "down"}, want: guard.ErrOutcomeUnknown, released: 1},
		{answers: []string{"lost", "free"}, want: guard.ErrOutcomeUnknown, released: 1},
		{answers: []string{"lost"}, want: guard.ErrOutcomeUnknown, given: "mine"},
		{answers: []string{"late"}, want: guard.ErrUnavailable, released: 1},
		{answers: []string{"late"}, want: guard.ErrOutcomeUnknown, given: "mine"},
		{wait: true, answers: []string{"held", "held", "granted"}, token: 3},
		{wait: true, answers: []string{"lost", "held", "granted"}, token: 3},
		{wait: true, answers: []string{"held", "lost", "held", "lost", "granted"}, token: 5},
		{wait: true, answers: []string{"held", "in use"}, want: guard.ErrInvalid, given: "mine"},
		{wait: true, answers: []string{"held"}, want: ErrHeld},
		{wait: true, answers: []string{"lost", "held"}, want: ErrHeld, released: 1},
		{wait: true, answers: []string{"held", "down"}, want: guard.ErrUnavailable},
		{wait: true, answers: []string{"held", "lost"}, want: guard.ErrOutcomeUnknown, released: 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			i := &answering{}
			i.acquire = func(_ context.Context, r driver.Request) (driver.Grant, error) {
				n, _, _ := i.counts()
				switch says := said(test.answers, n-1); says {
				case "granted":
					return driver.Grant{Token: guard.Token(n), From: i.clock()}, nil
				case "late":
					return driver.Grant{Token: guard.Token(n), From: i.clock() - r.TTL}, nil
				case "held":
					return driver.Grant{}, heldBy7(r)
				case "free":
					return driver.Grant{}, &HeldError{Resource: r.Resource}
				case "spent":
					return driver.Grant{}, driver.ErrLeaseIDSpent
				case "in use":
					return driver.Grant{}, driver.LeaseIDInUse(r.LeaseID, "another")
				default:
					return driver.Grant{}, answer("acquire", r.Claim(), says, n-1)
				}
			}
			client := i.client(t, nil)
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			acquire := client.TryAcquire
			if test.wait {
				acquire = client.Acquire
			}
			lease, err := acquire(ctx, "r", &AcquireOptions{TTL: time.Hour, LeaseID: test.given})
			switch {
			case test.want != nil && (lease != nil || !errors.Is(err, test.want)):
				t.Errorf("%+v: got %v, %v", test, lease, err)
			case test.want == nil && (err != nil || lease.Token() != test.token):
				t.Errorf("%+v: got %v, %v", test, lease, err)
			}
			if unknown := errors.Is(err, guard.ErrOutcomeUnknown); err != nil && unknown != (test.want == guard.ErrOutcomeUnknown) {
				t.Errorf("%+v: unknown %t: %v", test, unknown, err)
			}
			if test.wait && test.want == ErrHeld && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%+v: why the wait ended is not in %v", test, err)
			}
			client.Close(context.Background())
			for _, claim := range i.released {
				if claim.Token != guard.NoToken { // it spends the lease ID
					t.Errorf("%+v: released %+v", test, claim)
				}
			}
			if len(i.released) != test.released {
				t.Errorf("%+v: released %v", test, i.released)
			}
			if lease != nil {
				lease.end(ErrReleased)
			}
		})
	}
}

// TestLateRenewal: an answer that comes after the deadline extends nothing,
// even if no timer has noticed the deadline.
func TestLateRenewal(t *testing.T) {
	var now atomic.Int64 // the client's renewals read it too
	client := simulate(t, simulation{func() time.Duration { return time.Duration(now.Load()) }}, nil)
	defer client.Close(t.Context())
	lease := newLease(t.Context(), client, new(request), guard.Claim{Resource: "r", Token: 1}, driver.Grant{AcquiredAt: time.Now()}, MaxTTL, MaxTTL, client.clock())
	lease.extend(2 * MaxTTL)
	if now.Store(int64(MaxTTL)); !lease.Valid() {
		t.Error("a renewal in time does not count")
	}
	lease.extend(MaxTTL) // an older answer
	if now.Store(int64(2*MaxTTL - 1)); !lease.Valid() {
		t.Error("an older answer took time away")
	}
	now.Store(int64(2 * MaxTTL))
	lease.extend(3 * MaxTTL)
	if lease.Valid() || !errors.Is(lease.Err(), ErrLeaseLost) {
		t.Error("a renewal brought the lease back")
	}
}
