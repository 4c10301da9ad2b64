package lockclient

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/leasetest"
)

// TestTwoLeasesOfOneResource: a lease that was force-unlocked and its successor,
// both of one client and renewed together, are not taken for each other.
func TestTwoLeasesOfOneResource(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	for name, reversed := range map[string]bool{"old, new": false, "new, old": true} {
		client := newTestClient(t, pool, nil)
		old := mustTry(t, client, name, time.Minute)
		mustExec(t, pool, "UPDATE fencepost.leases SET lease_id = NULL, token = token + 1, expires_at = clock_timestamp() WHERE lease_id IS NOT NULL")
		now := mustTry(t, client, name, time.Minute)
		batch := []*Lease{old, now}
		if reversed {
			batch = []*Lease{now, old}
		}
		client.keeper.send(batch)
		<-old.Done()
		if !errors.Is(old.Err(), ErrLeaseLost) || now.Err() != nil {
			t.Errorf("%s: the former lease: %v, its successor: %v", name, old.Err(), now.Err())
		}
		testkit.Check(t, now.Release(t.Context()))
	}
}

// TestRepeatedAcquireIsRenewed: two leases of one claim, from an acquire that was
// repeated under its lease ID, are never in one batch.
func TestRepeatedAcquireIsRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := &answering{limits: driver.Limits{Batch: 10}}
		i.renew = func(_ context.Context, renewals []driver.Renewal, results []driver.Renewed) {
			seen := map[guard.Claim]bool{}
			for n, r := range renewals {
				if seen[r.Claim] {
					t.Errorf("twice in one batch: %+v", r.Claim)
				}
				seen[r.Claim] = true
				results[n] = driver.Renewed{State: driver.Extended, From: i.clock()}
			}
		}
		i.acquire = func(_ context.Context, r driver.Request) (driver.Grant, error) {
			return driver.Grant{Token: 7, From: i.clock()}, nil
		}
		client := i.client(t, nil)
		var leases []*Lease
		for range 2 {
			lease, err := client.TryAcquire(t.Context(), "r", &AcquireOptions{TTL: time.Minute, LeaseID: "job"})
			testkit.Must(t, err)
			testkit.Must(t, lease.KeepAlive(0))
			leases = append(leases, lease)
		}
		client.keeper.renew(leases)
		synctest.Wait()
		if i.renewals() != 2 {
			t.Errorf("%d renewals", i.renewals())
		}
		for _, lease := range leases {
			if !lease.Valid() {
				t.Error(lease.Err())
			}
		}
	})
}

// TestEndedLeaseIsKnownInTime: a lease of a second ends on time, even while one of a day, of
// which the interval is longer, is about to be renewed.
func TestEndedLeaseIsKnownInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := (&answering{limits: driver.Limits{Batch: 10}}).client(t, nil)
		long := mustTry(t, client, "long", 24*time.Hour)
		testkit.Must(t, long.KeepAlive(0))
		for range 3 {
			long.mu.Lock()
			due := long.renewAt - client.clock()
			long.mu.Unlock()
			time.Sleep(due - 500*time.Millisecond)
			short := mustTry(t, client, "short", time.Second)
			began, left := time.Now(), short.Remaining()
			if <-short.Done(); time.Since(began) != left {
				t.Errorf("Done after %v of %v", time.Since(began), left)
			}
		}
	})
}

// TestEndedInBatch: a lease that ends while a batch is being sent is left out, and
// the others are renewed.
func TestEndedInBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := &answering{limits: driver.Limits{Batch: 10}}
		i.renew = func(ctx context.Context, renewals []driver.Renewal, results []driver.Renewed) {
			for n := range renewals {
				if results[n] = (driver.Renewed{State: driver.Extended, From: i.clock()}); ctx.Err() != nil {
					results[n] = driver.Renewed{Err: ctx.Err()}
				}
			}
		}
		client := i.client(t, nil)
		a, b := mustTry(t, client, "a", 10*time.Second), mustTry(t, client, "b", 20*time.Second)
		testkit.Must(t, a.Release(t.Context()))
		client.keeper.send([]*Lease{a, b})
		if b.failures != 0 || len(i.renewed) != 1 || i.renewed[0].Claim != b.claim {
			t.Errorf("%d failures, %v; renewed %+v", b.failures, b.failed, i.renewed)
		}
		client.keeper.send([]*Lease{a})
		if len(i.renewed) != 1 {
			t.Errorf("renewed %+v", i.renewed)
		}
	})
}

// TestBatchesByDeadline: the renewals that are sent first are those of the leases that
// end first, and those that failed before are in batches of their own.
func TestBatchesByDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := &answering{limits: driver.Limits{Batch: 2}}
		var batches []string
		i.renew = func(_ context.Context, renewals []driver.Renewal, results []driver.Renewed) {
			names := ""
			for n, r := range renewals {
				names += r.Claim.Resource
				results[n] = driver.Renewed{State: driver.Extended, From: i.clock()}
			}
			i.mu.Lock()
			defer i.mu.Unlock()
			batches = append(batches, names)
		}
		client := i.client(t, nil)
		var due []*Lease
		for n, name := range []string{"e", "d", "c", "b", "a", "f"} {
			due = append(due, mustTry(t, client, name, time.Duration(10-n)*time.Minute))
		}
		due[0].failures = 1 // "e", which ends last, failed before; "f" ends first
		client.keeper.renew(due)
		client.keeper.wg.Wait()
		slices.Sort(batches)
		if want := []string{"af", "bc", "d", "e"}; !slices.Equal(batches, want) {
			t.Errorf("batches %v, want %v", batches, want)
		}
	})
}

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

// TestLeaseAfterClose: a lease outside of Hold ends at its deadline, and cannot be
// kept alive any more.
func TestLeaseAfterClose(t *testing.T) {
	for name, kept := range map[string]bool{"kept alive": true, "not kept": false} {
		testkit.Bubble(t, name, func(t *testing.T) {
			i := &answering{}
			client := i.client(t, nil)
			lease := mustTry(t, client, "r", time.Minute)
			if kept {
				testkit.Must(t, lease.KeepAlive(0))
			}
			left := lease.Remaining()
			testkit.Must(t, client.Close(t.Context()))
			if err := lease.KeepAlive(0); !errors.Is(err, guard.ErrSetup) || !errors.Is(err, ErrClosed) {
				t.Errorf("KeepAlive: %v", err)
			}
			began := time.Now()
			select {
			case <-lease.Done():
			case <-time.After(time.Hour):
			}
			if took := time.Since(began); took != left || !errors.Is(lease.Err(), ErrLeaseLost) || i.renewals() != 0 {
				t.Errorf("Done after %v of %v, %v, %d renewals", took, left, lease.Err(), i.renewals())
			}
		})
	}
}

// TestCloseStopsAbandoned: a release that nobody waits for, and that fails, holds up
// Close for Options.OpTimeout.
func TestCloseStopsAbandoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := &answering{
			acquire: func(_ context.Context, r driver.Request) (driver.Grant, error) {
				return driver.Grant{}, guard.OutcomeUnknown("acquire", r.Claim(), errSimulated)
			},
			release: func(context.Context, guard.Claim) (bool, error) {
				return false, guard.Unavailable("release", guard.Claim{}, errSimulated)
			},
		}
		client := i.client(t, &Options{OpTimeout: 7 * time.Second})
		_, err := client.TryAcquire(t.Context(), "r", &AcquireOptions{TTL: 3 * time.Hour})
		failure(t, err, guard.ErrOutcomeUnknown, "r", errSimulated)
		began := time.Now()
		if err := client.Close(t.Context()); err != nil || time.Since(began) != 7*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// TestReleaseDuringClose: a Release whose answer was lost is repeated to its end
// before the issuer is closed.
func TestReleaseDuringClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := &answering{}
		client := i.client(t, nil)
		lease := mustTry(t, client, "r", time.Minute)
		closed := make(chan error, 1)
		i.release = func(_ context.Context, claim guard.Claim) (bool, error) {
			if i.closed > 0 {
				return false, guard.Unavailable("release", claim, ErrClosed)
			}
			if len(i.released) == 1 {
				go func() { closed <- client.Close(context.Background()) }()
				synctest.Wait()
				return false, guard.OutcomeUnknown("release", claim, errSimulated)
			}
			return true, nil
		}
		if err := lease.Release(t.Context()); err != nil || len(i.released) != 2 {
			t.Errorf("%v after %d attempts", err, len(i.released))
		}
		testkit.Check(t, <-closed)
	})
}

// TestLeaseOfClosedKeeper: a lease that a Close that did not wait has overtaken ends
// at its deadline.
func TestLeaseOfClosedKeeper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := (&answering{}).client(t, nil)
		client.keeper.close()
		lease := mustTry(t, client, "r", time.Minute)
		began, left := time.Now(), lease.Remaining()
		if <-lease.Done(); time.Since(began) != left {
			t.Errorf("Done after %v of %v", time.Since(began), left)
		}
	})
}

// TestCloseGivesUp: once its context has ended, Close leaves no renewal in flight.
func TestCloseGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, ended := make(chan struct{}), make(chan time.Time, 1)
		i := &answering{}
		i.renew = func(ctx context.Context, renewals []driver.Renewal, results []driver.Renewed) {
			close(began)
			<-ctx.Done()
			ended <- time.Now()
			results[0] = driver.Renewed{Err: guard.OutcomeUnknown("renew", renewals[0].Claim, errSimulated)}
		}
		client := i.client(t, nil)
		go client.Hold(context.Background(), "r", &AcquireOptions{TTL: time.Hour, RenewInterval: time.Second}, func(context.Context) error { time.Sleep(2 * time.Second); return nil })
		<-began
		closing, cancel := context.WithCancel(t.Context())
		cancel()
		at := time.Now()
		if err := client.Close(closing); !errors.Is(err, guard.ErrUnavailable) {
			t.Errorf("Close: %v", err)
		}
		if end := <-ended; end != at {
			t.Errorf("the renewal went on for %v after Close", end.Sub(at))
		}
		time.Sleep(time.Minute)
	})
}

// TestCloseInsideHold: a Hold's function that closes its client does not wait for itself
// without end: not at all with the context that it got, and else ten minutes.
func TestCloseInsideHold(t *testing.T) {
	for _, own := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			client := (&answering{}).client(t, nil)
			start := time.Now()
			err := client.Hold(t.Context(), "r", &AcquireOptions{TTL: time.Hour}, func(ctx context.Context) error {
				if !own {
					ctx = context.Background()
				}
				return client.Close(ctx)
			})
			want, after := ErrClosed, time.Duration(0)
			if !own {
				want, after = errCloseTimeout, closeTimeout
			}
			if took := time.Since(start); !errors.Is(err, guard.ErrUnavailable) || !errors.Is(err, want) || took != after {
				t.Errorf("its own context %t: Close after %v: %v", own, took, err)
			}
			if err := client.Close(t.Context()); err != nil {
				t.Errorf("closed again, outside: %v", err)
			}
		})
	}
}

// TestReleaseAfterClose: a Release that comes when the issuer is closed already frees
// its lease through the caller's pool. The control is a lease that nobody releases.
func TestReleaseAfterClose(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	client := newTestClient(t, pool, nil)
	released, chosen := mustTry(t, client, "released", time.Hour), mustTry(t, client, "left", time.Hour)
	testkit.Must(t, client.Close(t.Context()))
	testkit.Check(t, released.Release(t.Context()))
	for _, l := range []*Lease{released, chosen} {
		if held := leasetest.Value[bool](t, pool, "SELECT lease_id IS NOT NULL FROM fencepost.leases WHERE resource = $1", l.Resource()); held != (l == chosen) {
			t.Errorf("%s: held %t", l.Resource(), held)
		}
	}
}
