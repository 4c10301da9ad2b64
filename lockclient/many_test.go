package lockclient

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/leasetest"
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
	tx := leasetest.Begun(t, pool, "SELECT FROM fencepost.leases WHERE resource LIKE '%locked' FOR UPDATE")
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

// listens returns when a client is notified of releases.
func listens(t *testing.T, c *Client) {
	t.Helper()
	resource := fmt.Sprintf("listens %s %p", t.Name(), c)
	lease := mustTry(t, c, resource, time.Hour)
	defer lease.Release(context.Background())
	testkit.Eventually(t, "it listens", func() bool {
		watching, err := c.issuer.Watch(t.Context(), driver.Watch{Resource: resource, LeaseID: "somebody else's"}, func() {})
		if err == nil {
			watching.Stop()
		}
		return err == nil
	})
}

// TestHandOver: 2 and 8 waiters, in one client and in one client each, pass a lease
// around. None of them asks on its own, so that every hand-over is due to a
// notification. The control is a waiter that is not notified.
func TestHandOver(t *testing.T) {
	t.Parallel()
	pool := dial(t, migrated(t).Config().ConnString(), func(c *pgxpool.Config) { c.MaxConns = 16 })
	alter(t, pool, "watch", "clock_timestamp() + interval '5 s'", "clock_timestamp() + interval '1 hour'") // however slow the machine is
	for _, crowd := range []int{2, 8} {
		for _, clients := range []int{1, crowd} {
			t.Run(fmt.Sprintf("waiters=%d/clients=%d", crowd, clients), func(t *testing.T) {
				handOver(t, pool, crowd, clients, byLength(12, 60))
			})
		}
	}
	t.Run("control: not notified", func(t *testing.T) {
		holder, client := newTestClient(t, pool, nil), newTestClient(t, pool, nil)
		client.issuer = deaf{client.issuer}
		client.limits.Poll = time.Hour
		lease := mustTry(t, holder, t.Name(), time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		granted := make(chan bool, 1)
		go func() {
			_, err := client.Acquire(ctx, t.Name(), &AcquireOptions{TTL: time.Hour})
			granted <- err == nil
		}()
		testkit.Eventually(t, "the waiter's mark", func() bool { return rests(t, pool, t.Name()) })
		testkit.Must(t, lease.Release(t.Context()))
		select {
		case <-granted:
			t.Error("granted without a notification")
		case <-time.After(200 * time.Millisecond): // it would be granted within some
		}
	})
}

// deaf is an issuer that notifies nobody.
type deaf struct{ driver.Issuer }

func (d deaf) Watch(ctx context.Context, w driver.Watch, _ func()) (driver.Watching, error) {
	return d.Issuer.Watch(ctx, w, func() {})
}

func handOver(t *testing.T, pool *pgxpool.Pool, crowd, clients, handOvers int) {
	crew := make([]*Client, clients)
	for i := range crew {
		crew[i] = newTuned(t, pool, pglock.Options{RenewConns: 1}, nil)
		crew[i].limits.Poll = time.Hour
		listens(t, crew[i]) // before anybody waits
	}
	var mu sync.Mutex
	changed := sync.NewCond(&mu)
	done, last := 0, -1
	var wg sync.WaitGroup
	for i := range crowd {
		wg.Go(func() {
			for {
				lease, err := crew[i%clients].Acquire(t.Context(), t.Name(), &AcquireOptions{TTL: time.Hour})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				if last != i {
					done++
				}
				last = i
				changed.Broadcast()
				enough := done >= handOvers
				mu.Unlock()
				time.Sleep(8 * time.Millisecond) // so that others wait by then
				testkit.Check(t, lease.Release(t.Context()))
				if enough {
					return
				}
				mu.Lock()
				for last == i { // another's turn
					changed.Wait()
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
}

// TestTakeover: a waiter that nobody notifies, and that asks on its own only after an
// hour, takes an expiring lease over when it has expired by the server's clock, and
// not before.
func TestTakeover(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	holder, client := newTestClient(t, pool, nil), newTestClient(t, pool, nil)
	client.limits.Poll = time.Hour
	mustTry(t, holder, "r", time.Hour)
	expires := expiresIn(t, pool, "r", 300*time.Millisecond)
	next := testkit.Receive(t, "the takeover", waits(t, client, "r", time.Hour))
	if next.AcquiredAt().Before(expires) {
		t.Errorf("granted %v too early", expires.Sub(next.AcquiredAt()))
	}
}

// TestKeptMessage: a lease that is free, and kept for a process that has waited
// longer, is not said to be held by the one that released it.
func TestKeptMessage(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	a, b, c := newTestClient(t, pool, nil), newTestClient(t, pool, nil), newTestClient(t, pool, nil)
	lease := mustTry(t, a, "r", time.Hour)
	warm(t, c)
	testkit.Eventually(t, "it waits", func() bool {
		w, err := b.issuer.Watch(t.Context(), driver.Watch{Resource: "r", LeaseID: "b", Wait: time.Second}, func() {})
		if err == nil {
			w.Stop() // and does not come
		}
		return err == nil
	})
	// However slow the machine is.
	mustExec(t, pool, "UPDATE fencepost.leases SET wake_until = clock_timestamp() + interval '1 hour' WHERE resource = 'r'")
	testkit.Must(t, lease.Release(t.Context()))
	mustExec(t, pool, "UPDATE fencepost.leases SET expires_at = clock_timestamp() + interval '1 hour' WHERE resource = 'r'")
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		testkit.Eventually(t, "the refusal", func() bool { return refused(c, "r") })
	}()
	_, err := c.Acquire(ctx, "r", &AcquireOptions{TTL: time.Hour})
	var held *HeldError
	if !errors.As(err, &held) || held.Owner != "" || held.LeaseID != "" || held.Token != 0 || held.Remaining <= 0 ||
		!strings.Contains(err.Error(), "is kept for a process that has waited longer") {
		t.Errorf("got %v, %+v", err, held)
	}
}
