package lockclient

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/pglock"

	"github.com/jackc/pgx/v5/pgxpool"
)

// counting counts the requests to an issuer.
type counting struct {
	driver.Issuer
	attempts, grants, exchanges, renewals atomic.Int64
}

func (c *counting) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	c.attempts.Add(1)
	g, err := c.Issuer.Acquire(ctx, r)
	if err == nil {
		c.grants.Add(1)
	}
	return g, err
}

func (c *counting) Renew(ctx context.Context, renewals []driver.Renewal, results []driver.Renewed) {
	c.exchanges.Add(1)
	c.renewals.Add(int64(len(renewals)))
	c.Issuer.Renew(ctx, renewals, results)
}

// TestRenewalsGoOutTogether: thousands of leases cost few statements, little
// memory, no goroutine each, and none is lost.
func TestRenewalsGoOutTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := &answering{limits: driver.Limits{Batch: 1000}}
		together(t, i.client(t, nil), 2000, 30*time.Second, 5*time.Minute, 20)
	})
}

// together keeps that many leases alive for as long as lasts, with at most one
// statement for least renewals.
func together(t *testing.T, client *Client, leases int, ttl, lasts time.Duration, least int64) {
	t.Helper()
	count := &counting{Issuer: client.issuer}
	client.issuer = count
	var wg sync.WaitGroup
	held := make([]*Lease, leases)
	var before runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for w := range 64 {
		wg.Go(func() {
			for n := w; n < leases; n += 64 {
				lease, err := client.TryAcquire(t.Context(), fmt.Sprint("many ", n), &AcquireOptions{TTL: ttl})
				if err == nil {
					err = lease.KeepAlive(0)
				}
				if err != nil {
					t.Error(err)
					return
				}
				held[n] = lease
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	var after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&after)
	perLease := (int64(after.HeapInuse+after.StackInuse) - int64(before.HeapInuse+before.StackInuse)) / int64(leases)
	time.Sleep(lasts)
	for _, l := range held {
		if l.Err() != nil {
			t.Fatal(l.Err())
		}
	}
	exchanges, renewals := count.exchanges.Load(), count.renewals.Load()
	t.Logf("%d leases of %v for %v: %d renewals in %d statements, %d bytes a lease, %d goroutines",
		leases, ttl, lasts, renewals, exchanges, perLease, runtime.NumGoroutine())
	if renewals < int64(leases)*int64(lasts/ttl) {
		t.Errorf("%d renewals of %d leases", renewals, leases)
	}
	if exchanges*least > renewals {
		t.Errorf("%d statements for %d renewals", exchanges, renewals)
	}
	if perLease > 4096 {
		t.Errorf("%d bytes a lease", perLease)
	}
	if n := runtime.NumGoroutine(); n > 200 {
		t.Errorf("%d goroutines", n)
	}
}

// TestLockedRowHoldsUpNobody: while somebody has a lock on one lease's row, the
// others of the client are acquired, renewed and released.
func TestLockedRowHoldsUpNobody(t *testing.T) {
	t.Parallel()
	pool := dial(t, migrated(t).Config().ConnString(), func(c *pgxpool.Config) { c.MaxConns = 8 })
	client := newTestClient(t, pool, nil)
	locked := mustTry(t, client, "locked", time.Hour)
	var others []*Lease
	for n := range 20 {
		others = append(others, mustTry(t, client, fmt.Sprint("other ", n), time.Hour))
	}
	free := mustTry(t, client, "free, and locked", time.Hour)
	testkit.Must(t, free.Release(t.Context()))
	tx, err := pool.Begin(t.Context())
	testkit.Must(t, err)
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), "SELECT FROM fencepost.leases WHERE resource LIKE '%locked' FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	renewals, results := []driver.Renewal{{Claim: locked.Claim(), TTL: time.Hour}}, make([]driver.Renewed, 21)
	for _, l := range others {
		renewals = append(renewals, driver.Renewal{Claim: l.Claim(), TTL: time.Hour})
	}
	client.issuer.Renew(t.Context(), renewals, results)
	if r := results[0]; r.State != driver.Unknown || !errors.Is(r.Err, guard.ErrUnavailable) || !errors.Is(r.Err, driver.ErrBusy) {
		t.Errorf("the locked one: %+v", r)
	}
	for n, r := range results[1:] {
		if r.State != driver.Extended {
			t.Errorf("other %d: %+v", n, r)
		}
	}
	// One waits for the locked row for half a minute; the others do not.
	stuck := make(chan error, 2)
	go func() {
		_, err := client.TryAcquire(context.Background(), "free, and locked", &AcquireOptions{TTL: time.Hour})
		stuck <- err
	}()
	go func() { stuck <- locked.Release(context.Background()) }()
	pgtest.Blocked(t, pool, "fencepost.acquire(", 1)
	pgtest.Blocked(t, pool, "fencepost.release(", 1)
	var wg sync.WaitGroup
	for n, l := range others {
		wg.Go(func() {
			testkit.Check(t, l.Release(t.Context()))
			mustTry(t, client, fmt.Sprint("new ", n), time.Hour)
		})
	}
	wg.Wait()
	if len(stuck) > 0 {
		t.Errorf("what waits for the locked row ended: %v", <-stuck)
	}
	testkit.Must(t, tx.Rollback(t.Context()))
	testkit.Check(t, errors.Join(<-stuck, <-stuck))
}

// crowd is what many clients that pass one lease around measured.
type crowd struct {
	perSecond, attempts float64 // grants per second, attempts per grant
	grants              int64
	longest, mean       time.Duration
}

// crowded makes that many clients wait for one name, each for that many grants.
func crowded(t *testing.T, processes, each int) crowd {
	url := migrated(t).Config().ConnString()
	clients := make([]*Client, processes)
	counts := make([]*counting, processes)
	for n := range clients {
		pool := dial(t, url, func(c *pgxpool.Config) { c.MaxConns = 1 })
		clients[n] = newTuned(t, pool, pglock.Options{RenewConns: 1}, nil)
		counts[n] = &counting{Issuer: clients[n].issuer}
		clients[n].issuer = counts[n]
	}
	// Everybody listens before the first release.
	first := mustTry(t, clients[0], "r", time.Hour)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var waited []time.Duration
	for n, c := range clients {
		wg.Go(func() {
			for round := range each {
				asked := time.Now()
				lease, err := c.Acquire(t.Context(), "r", &AcquireOptions{TTL: time.Hour})
				if err != nil {
					t.Error(err)
					return
				}
				if round > 0 {
					mu.Lock()
					waited = append(waited, time.Since(asked))
					mu.Unlock()
				}
				if err := lease.Release(t.Context()); err != nil {
					t.Error(n, err)
				}
			}
		})
	}
	pool := dial(t, url)
	testkit.Eventually(t, "all stand in line", func() bool {
		var line int
		err := pool.QueryRow(t.Context(), "SELECT coalesce(array_length(waiters, 1), 0) FROM fencepost.leases WHERE resource = 'r'").Scan(&line)
		return err == nil && line == processes
	})
	var before, attempts, grants int64
	for _, c := range counts {
		before += c.attempts.Load()
	}
	start := time.Now()
	testkit.Must(t, first.Release(t.Context()))
	wg.Wait()
	took := time.Since(start)
	for _, c := range counts {
		attempts += c.attempts.Load()
		grants += c.grants.Load()
	}
	grants-- // the first
	got := crowd{grants: grants, perSecond: float64(grants) / took.Seconds(), attempts: float64(attempts-before) / float64(grants)}
	for _, w := range waited {
		got.longest = max(got.longest, w)
		got.mean += w / time.Duration(len(waited))
	}
	t.Logf("%d processes, %d grants: %.0f a second, %.2f attempts each, the longest wait %v, the mean %v",
		processes, grants, got.perSecond, got.attempts, got.longest, got.mean)
	return got
}

// TestManyProcessesWait: several clients that wait for one name are all granted it, as
// often as they ask. That only the one that has waited longest is woken is tested
// in pglease; how many attempts a grant takes depends on the machine.
func TestManyProcessesWait(t *testing.T) {
	t.Parallel()
	if got := crowded(t, 8, 5); got.grants != 8*5 {
		t.Errorf("%d grants, want %d", got.grants, 8*5)
	}
}
