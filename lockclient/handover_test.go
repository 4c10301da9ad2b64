package lockclient

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/waiting"
	"github.com/fencepost-go/fencepost/lockclient/pglock"

	"github.com/jackc/pgx/v5/pgxpool"
)

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
// lease around. The time depends on the machine; at least half of the waiters must
// not wait as long as a waiter that asks on its own. Polls come after more than
// five seconds here, so that no hand-over is due to one; the control has nothing
// else.
func TestHandOver(t *testing.T) {
	t.Parallel()
	pool := dial(t, migrated(t).Config().ConnString(), func(c *pgxpool.Config) { c.MaxConns = 16 })
	for _, crowd := range []int{2, 8} {
		for _, clients := range []int{1, crowd} {
			t.Run(fmt.Sprintf("waiters=%d/clients=%d", crowd, clients), func(t *testing.T) {
				took := handOver(t, pool, crowd, clients, byLength(12, 60))
				p50, p99 := took[len(took)/2], took[len(took)*99/100]
				t.Logf("%d hand-overs: p50 %v, p99 %v", len(took), p50, p99)
				if p50 > waiting.Look {
					t.Errorf("the median is %v", p50)
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

func handOver(t *testing.T, pool *pgxpool.Pool, crowd, clients, handOvers int) (took []time.Duration) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	crew := make([]*Client, clients)
	for i := range crew {
		crew[i] = newTuned(t, pool, pglock.Options{RenewConns: 1}, &Options{PollInterval: time.Minute})
		listens(t, crew[i]) // before anybody waits
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
	slices.Sort(took)
	return took
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
