package lockclient

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

// TestMarginIsAThird: the warning comes when less than a third of the TTL is left,
// for a lease that is kept alive and still runs.
func TestMarginIsAThird(t *testing.T) {
	for name, test := range map[string]struct {
		change func(l *Lease)
		left   time.Duration
		warns  bool
	}{
		"a third":       {left: 10 * time.Second},
		"less":          {left: 10*time.Second - 1, warns: true},
		"not kept":      {left: 10*time.Second - 1, change: func(l *Lease) { l.every = 0 }},
		"already ended": {left: 10*time.Second - 1, change: func(l *Lease) { l.end(ErrReleased) }},
	} {
		testkit.Bubble(t, name, func(t *testing.T) {
			lease := mustTry(t, (&answering{}).client(t, nil), "r", 30*time.Second)
			lease.every = time.Second
			if test.change != nil {
				test.change(lease)
			}
			if warn, left := lease.lowMargin(lease.deadline-test.left, true); warn != test.warns || left != test.left {
				t.Errorf("warned: %t, %v left", warn, left)
			}
		})
	}
}

// TestLastRenewal: a lost lease names the renewal that failed last, unless one
// succeeded since.
func TestLastRenewal(t *testing.T) {
	for name, succeeds := range map[string]bool{"failed": false, "and succeeded since": true} {
		testkit.Bubble(t, name, func(t *testing.T) {
			i := &answering{}
			lease := mustTry(t, i.client(t, nil), "r", time.Minute)
			i.renew = func(_ context.Context, renewals []driver.Renewal, results []driver.Renewed) {
				results[0].Err = guard.Unavailable("renew", renewals[0].Claim, errSimulated)
			}
			if err := lease.Renew(t.Context()); !errors.Is(err, errSimulated) {
				t.Fatal(err)
			}
			if succeeds {
				i.renew = nil
				testkit.Must(t, lease.Renew(t.Context()))
			}
			time.Sleep(time.Minute)
			var lost *LostError
			if !errors.As(lease.Err(), &lost) || errors.Is(lost.LastRenewal, errSimulated) == succeeds {
				t.Errorf("got %v", lease.Err())
			}
		})
	}
}

// TestRenewEnded: the issuer is not asked about a lease that has ended.
func TestRenewEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := &answering{}
		lease := mustTry(t, i.client(t, nil), "r", time.Minute)
		testkit.Must(t, lease.Release(t.Context()))
		if err := lease.Renew(t.Context()); !errors.Is(err, ErrReleased) || i.renewals() != 0 {
			t.Errorf("got %v after %d renewals", err, i.renewals())
		}
	})
}

// TestRenewTimeout: a renewal may take half of the time left, but near the deadline
// a quarter of MinTTL, and never more than is left or than Options.OpTimeout.
func TestRenewTimeout(t *testing.T) {
	for left, want := range map[time.Duration]time.Duration{
		time.Minute:           5 * time.Second,
		8 * time.Second:       4 * time.Second,
		60 * time.Millisecond: 30 * time.Millisecond,
		30 * time.Millisecond: 25 * time.Millisecond,
		20 * time.Millisecond: 20 * time.Millisecond,
	} {
		synctest.Test(t, func(t *testing.T) {
			i := &answering{}
			lease := mustTry(t, i.client(t, nil), "r", time.Minute)
			var got time.Duration
			i.renew = func(ctx context.Context, _ []driver.Renewal, results []driver.Renewed) {
				until, _ := ctx.Deadline()
				got, results[0] = time.Until(until), driver.Renewed{State: driver.Extended, From: i.clock()}
			}
			time.Sleep(lease.Remaining() - left)
			if err := lease.Renew(t.Context()); err != nil || got != want {
				t.Errorf("with %v left: %v, want %v; %v", left, got, want, err)
			}
		})
	}
}
