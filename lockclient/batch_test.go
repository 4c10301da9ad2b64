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
