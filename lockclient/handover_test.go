package lockclient

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// TestHandOver measures the time from the call of Release to the next waiter's
// grant, with 2 and 16 waiters in one client and in one client each. What is
// promised is that a waiter is told: none may have looked by itself and found the
// lease free. The time is the machine's; half of the waiters must at least not
// wait for as long as the others look. Polls come after more than five seconds
// here, so that no hand-over is owed to one; the control has nothing else.
func TestHandOver(t *testing.T) {
	pool := dial(t, migrated(t).Config().ConnString(), func(c *pgxpool.Config) { c.MaxConns = 16 })
	for _, crowd := range []int{2, 16} {
		for _, clients := range []int{1, crowd} {
			t.Run(fmt.Sprintf("waiters=%d/clients=%d", crowd, clients), func(t *testing.T) {
				took, missed := handOver(t, pool, crowd, clients, byLength(30, 60))
				p50, p99 := took[len(took)/2], took[len(took)*99/100]
				t.Logf("%d hand-overs: p50 %v, p99 %v", len(took), p50, p99)
				if p50 > lookAgain || missed > 0 {
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
			case time.Since(began) > nap: // the machine stood still: nothing is shown
				runOut(t, pool, t.Name())
				continue
			case got:
				t.Error("granted without a poll")
			}
			return
		}
	})
}

// silent hides that an issuer can tell of releases.
type silent struct{ issuer }

func handOver(t *testing.T, pool *pgxpool.Pool, crowd, clients, handOvers int) (took []time.Duration, missed int64) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	crew, sleeping := make([]*Client, clients), make([]*sleepers, clients)
	for i := range crew {
		crew[i] = newTestClient(t, pool, &Options{PollInterval: time.Minute, RenewConns: 1})
		sleeping[i] = &sleepers{postgres: crew[i].issuer.(*postgres), marked: map[string]<-chan struct{}{}}
		crew[i].issuer = sleeping[i]
		sub := sleeping[i].subscribe("so that it listens before anybody waits")
		defer sleeping[i].unsubscribe(sub)
		eventually(t, "it listens", func() bool { return sleeping[i].listening() != nil })
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
	for _, s := range sleeping {
		missed += s.missed.Load()
	}
	slices.Sort(took)
	return took, missed
}

// TestTakeover: an expiring lease is taken over within TTL + 200 ms, by the
// server's clock, by a waiter that is told of releases and by one that polls. A
// busy machine may be late; one round in time shows that the waiter goes by what
// is left of the lease, since it would look, or poll, seconds later otherwise.
func TestTakeover(t *testing.T) {
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
