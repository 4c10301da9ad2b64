package lockclient

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/waiting"
	"github.com/fencepost-go/fencepost/lockclient/pglock"

	"github.com/jackc/pgx/v5/pgxpool"
)

// sleepers finds waiters that slept through a release. A waiter that asks on its
// own, as every waiter does after a while, and finds the lease free must have been
// woken, since it had set a mark; on a busy machine the notification is read after
// it asks, and the time that a wait takes proves nothing. It is for the waiters of
// one process: of several, those that are not named hold back.
type sleepers struct {
	driver.Issuer
	patience time.Duration
	mu       sync.Mutex
	asleep   map[string]*sleep // by lease ID

	looked, missed atomic.Int64
}

// sleep is a watch that is kept until its waiter asks or looks.
type sleep struct {
	woken atomic.Bool
	stop  func()
}

func watchSleepers(c *Client) *sleepers {
	s := &sleepers{Issuer: c.issuer, patience: patience, asleep: map[string]*sleep{}}
	c.issuer = s
	return s
}

func (s *sleepers) over(leaseID string) *sleep {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.asleep[leaseID]
	delete(s.asleep, leaseID)
	return before
}

func (s *sleepers) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if before := s.over(r.LeaseID); before != nil { // it woke
		before.stop()
	}
	return s.Issuer.Acquire(ctx, r)
}

func (s *sleepers) Watch(ctx context.Context, w driver.Watch, wake func()) (driver.Watching, error) {
	before := s.over(w.LeaseID)
	now := &sleep{}
	watching, err := s.Issuer.Watch(ctx, w, func() { now.woken.Store(true); wake() })
	if before != nil {
		s.looked.Add(1)
		if err == nil && watching.Held == nil {
			for end := time.Now().Add(s.patience); !before.woken.Load(); time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					s.missed.Add(1)
					break
				}
			}
		}
		before.stop()
	}
	if err == nil && watching.Held != nil {
		now.stop = watching.Stop
		s.mu.Lock()
		s.asleep[w.LeaseID] = now
		s.mu.Unlock()
		watching.Stop = func() {}
	}
	return watching, err
}

// close ends the watches of waiters that have gone.
func (s *sleepers) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, now := range s.asleep {
		now.stop()
	}
}

// silent hides that an issuer can notify of releases.
type silent struct{ driver.Issuer }

func (silent) Watch(context.Context, driver.Watch, func()) (driver.Watching, error) {
	return driver.Watching{}, driver.ErrNoWatch
}

// listens returns when a client is notified of releases.
func listens(t *testing.T, c *Client) {
	t.Helper()
	resource := fmt.Sprintf("listens %s %p", t.Name(), c)
	lease := mustTry(t, c, resource, time.Hour)
	defer lease.Release(context.Background())
	eventually(t, "it listens", func() bool {
		watching, err := c.issuer.Watch(t.Context(), driver.Watch{Resource: resource, LeaseID: "somebody else's"}, func() {})
		if err == nil {
			watching.Stop()
		}
		return err == nil
	})
}

// TestHandOver: 2 and 8 waiters, in one client and in one client each, pass a
// lease around. Every waiter of one client is notified: none asks on its own and
// finds the lease free. The time depends on the machine; at least half of the waiters must
// not wait as long as a waiter that asks on its own. Polls come after more than
// five seconds here, so that no hand-over is due to one; the control has nothing
// else.
func TestHandOver(t *testing.T) {
	t.Parallel()
	pool := dial(t, migrated(t).Config().ConnString(), func(c *pgxpool.Config) { c.MaxConns = 16 })
	for _, crowd := range []int{2, 8} {
		for _, clients := range []int{1, crowd} {
			t.Run(fmt.Sprintf("waiters=%d/clients=%d", crowd, clients), func(t *testing.T) {
				took, missed := handOver(t, pool, crowd, clients, byLength(12, 60))
				p50, p99 := took[len(took)/2], took[len(took)*99/100]
				t.Logf("%d hand-overs: p50 %v, p99 %v", len(took), p50, p99)
				if p50 > waiting.Look || missed > 0 {
					t.Errorf("the median is %v, %d waiters slept through a release", p50, missed)
				}
			})
		}
	}
	t.Run("control: polling", func(t *testing.T) {
		holder, client := newTestClient(t, pool, nil), newTestClient(t, pool, &Options{PollInterval: time.Minute})
		client.issuer = silent{client.issuer}
		const nap = 5 * time.Second // less than the first one
		for {
			began := time.Now()
			lease := mustTry(t, holder, t.Name(), time.Minute)
			ctx, cancel := context.WithCancel(t.Context())
			granted := make(chan bool, 1)
			go func() {
				_, err := client.Acquire(ctx, t.Name(), &AcquireOptions{TTL: time.Minute})
				granted <- err == nil
			}()
			eventually(t, "it is told who has the lease", func() bool { return refused(client, t.Name()) })
			if err := lease.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(200 * time.Millisecond)
			cancel()
			switch got := <-granted; {
			case time.Since(began) > nap: // the machine was stalled: nothing is proved
				runOut(t, pool, t.Name())
				continue
			case got:
				t.Error("granted without a poll")
			}
			return
		}
	})
}

func handOver(t *testing.T, pool *pgxpool.Pool, crowd, clients, handOvers int) (took []time.Duration, missed int64) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	crew := make([]*Client, clients)
	for i := range crew {
		crew[i] = newTuned(t, pool, pglock.Options{RenewConns: 1}, &Options{PollInterval: time.Minute})
		listens(t, crew[i]) // before anybody waits
	}
	var sleeping *sleepers
	if clients == 1 {
		sleeping = watchSleepers(crew[0])
	}
	var mu sync.Mutex
	var released time.Time
	var by, last int
	var wg sync.WaitGroup
	for i := range crowd {
		wg.Go(func() {
			for {
				lease, err := crew[i%clients].Acquire(ctx, t.Name(), &AcquireOptions{TTL: time.Hour})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				if !released.IsZero() && by != i {
					took = append(took, time.Since(released))
				}
				last = i
				enough := len(took) >= handOvers
				mu.Unlock()
				time.Sleep(8 * time.Millisecond) // the others mark meanwhile
				mu.Lock()
				released, by = time.Now(), i
				mu.Unlock()
				if err := lease.Release(ctx); err != nil {
					t.Error(err)
				}
				if enough || ctx.Err() != nil {
					return
				}
				for others := false; !others && ctx.Err() == nil; time.Sleep(time.Millisecond) {
					mu.Lock()
					others = last != i
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	if len(took) < handOvers {
		t.Fatalf("%d hand-overs", len(took))
	}
	if sleeping != nil {
		sleeping.close()
		missed = sleeping.missed.Load()
	}
	slices.Sort(took)
	return took, missed
}

// TestTakeover: an expiring lease is taken over within TTL + 200 ms, by the
// server's clock, by a waiter that is notified of releases and by one that
// polls. A busy machine may be late; one round in time shows that the waiter
// goes by the lease's remaining time, since otherwise it would ask, or poll,
// much later.
func TestTakeover(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	for name, change := range map[string]func(*Client){
		"notified": func(*Client) {},
		"polling":  func(c *Client) { c.issuer = silent{c.issuer} },
	} {
		t.Run(name, func(t *testing.T) {
			holder, client := newTestClient(t, pool, nil), newTestClient(t, pool, &Options{PollInterval: time.Minute})
			change(client)
			best := time.Duration(math.MaxInt64)
			for round := 0; round < 20 && best > 200*time.Millisecond; round++ {
				mustTry(t, holder, name, time.Hour)
				expires := expiresIn(t, pool, name, 300*time.Millisecond)
				next := <-waits(t, client, name, time.Minute)
				best = min(best, next.AcquiredAt().Sub(expires))
				if next.AcquiredAt().Before(expires) {
					t.Errorf("granted %v too early", expires.Sub(next.AcquiredAt()))
				}
				next.Release(t.Context())
			}
			t.Logf("%v after the expiry", best)
			if best > 200*time.Millisecond {
				t.Errorf("granted %v after the expiry at best", best)
			}
		})
	}
}

// TestLineOfWaiters: sixteen waiters of one client are granted in the order of
// their arrival, and a release makes one of them ask.
func TestLineOfWaiters(t *testing.T) {
	expectNoGoroutines(t)
	pool := migrated(t)
	holder, client := newTestClient(t, pool, nil), newTestClient(t, pool, nil)
	count := &counting{Issuer: client.issuer}
	client.issuer = count
	lease := mustTry(t, holder, "r", time.Minute)
	const crowd = 16
	var mu sync.Mutex
	var order []int
	var wg sync.WaitGroup
	for i := range crowd {
		wg.Go(func() {
			l, err := client.Acquire(context.Background(), "r", &AcquireOptions{TTL: time.Minute})
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			order = append(order, i)
			mu.Unlock()
			if err := l.Release(context.Background()); err != nil {
				t.Error(err)
			}
		})
		eventually(t, "it stands in line", func() bool { return client.waiters.Count("r") == i+1 })
	}
	eventually(t, "the first rests", func() bool { return rests(t, pool, "r") })
	before := count.attempts.Load()
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if !slices.IsSorted(order) || len(order) != crowd {
		t.Errorf("granted in the order %v", order)
	}
	// A waiter asks when its turn comes and when it is woken.
	if n := count.attempts.Load() - before; n > 3*crowd {
		t.Errorf("%d tries for %d grants", n, crowd)
	}
}

// TestListenerBroken: the listening connection is cut repeatedly while waiters
// pass a lease around. None sleeps through a release, and a lost connection is
// restored. The same check must find a client that is not notified.
func TestListenerBroken(t *testing.T) {
	expectNoGoroutines(t)
	pool := migrated(t)
	rec := &recorder{}
	client := newTestClient(t, pool, &Options{PollInterval: 20 * time.Millisecond, Logger: slog.New(slog.NewJSONHandler(rec, nil))})
	asleep := watchSleepers(client)
	defer asleep.close()
	stop := make(chan struct{})
	var grants atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for !over(stop) {
				lease, err := client.Acquire(context.Background(), "r", &AcquireOptions{TTL: time.Hour})
				if err != nil {
					t.Error(err)
					return
				}
				grants.Add(1)
				time.Sleep(2 * time.Millisecond)
				if err := lease.Release(context.Background()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	told := func(msg string) (n int) {
		return rec.Count(msg)
	}
	for cut := range 8 {
		listens(t, client)
		before := grants.Load()
		eventually(t, "the lease goes around", func() bool { return grants.Load() > before+2 })
		mustExec(t, pool, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN %'`)
		eventually(t, "the cut is noticed", func() bool { return told("lock_listen_failed") > cut })
	}
	eventually(t, "it listens again", func() bool { return told("lock_listen_restored") >= 8 })
	close(stop)
	wg.Wait()
	t.Logf("%d grants, %d waiters looked by themselves", grants.Load(), asleep.looked.Load())
	if n := asleep.missed.Load(); n != 0 {
		t.Errorf("%d wake-ups were lost", n)
	}
}

// TestSleepersControl: sleepers finds a waiter whose wake-up is lost.
func TestSleepersControl(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	holder, client := newTestClient(t, pool, nil), newTestClient(t, pool, nil)
	listens(t, client)
	lease := mustTry(t, holder, "r", time.Hour)
	asleep := watchSleepers(client)
	asleep.Issuer = unwoken{asleep.Issuer}
	asleep.patience = 10 * time.Millisecond
	next := waits(t, client, "r", time.Hour)
	eventually(t, "the waiter rests", func() bool { return rests(t, pool, "r") })
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-next
	if asleep.missed.Load() != 1 {
		t.Errorf("%d waiters looked by themselves, %d were found asleep", asleep.looked.Load(), asleep.missed.Load())
	}
}

// unwoken is an issuer that wakes nobody.
type unwoken struct{ driver.Issuer }

func (u unwoken) Watch(ctx context.Context, w driver.Watch, _ func()) (driver.Watching, error) {
	return u.Issuer.Watch(ctx, w, func() {})
}

// TestKeptMessage: a lease that is free, and kept for a process that has waited
// longer, is not said to be held by the one that released it.
func TestKeptMessage(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	a, b, c := newTestClient(t, pool, nil), newTestClient(t, pool, nil), newTestClient(t, pool, nil)
	lease := mustTry(t, a, "r", time.Hour)
	warm(t, c)
	eventually(t, "it waits", func() bool {
		w, err := b.issuer.Watch(t.Context(), driver.Watch{Resource: "r", LeaseID: "b", Wait: time.Second}, func() {})
		if err == nil {
			w.Stop() // and does not come
		}
		return err == nil
	})
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustExec(t, pool, "UPDATE fencepost.leases SET expires_at = clock_timestamp() + interval '1 hour' WHERE resource = 'r'") // however slow the machine is
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := c.Acquire(ctx, "r", &AcquireOptions{TTL: time.Hour})
	var held *HeldError
	if !errors.As(err, &held) || held.Owner != "" || held.LeaseID != "" || held.Token != 0 || held.Remaining <= 0 ||
		!strings.Contains(err.Error(), "is kept for a process that has waited longer") {
		t.Errorf("got %v, %+v", err, held)
	}
}
