package lockclient

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/pglock"

	"github.com/jackc/pgx/v5/pgxpool"
)

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
