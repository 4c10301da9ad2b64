package lockclient

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// TestHandOver measures the time from the call of Release to the next waiter's
// grant, with 2 and 16 waiters in one client and in one client each. The bound
// is generous, since the machine may be busy; polling does not keep it.
func TestHandOver(t *testing.T) {
	pool := dial(t, migrated(t).Config().ConnString(), func(c *pgxpool.Config) { c.MaxConns = 16 })
	for _, crowd := range []int{2, 16} {
		for _, clients := range []int{1, crowd} {
			t.Run(fmt.Sprintf("waiters=%d/clients=%d", crowd, clients), func(t *testing.T) {
				took := handOver(t, pool, crowd, clients, byLength(30, 60), nil)
				p50, p99 := took[len(took)/2], took[len(took)*99/100]
				t.Logf("%d hand-overs: p50 %v, p99 %v", len(took), p50, p99)
				if p50 > 50*time.Millisecond {
					t.Errorf("the median is %v", p50)
				}
			})
		}
	}
	t.Run("control: polling", func(t *testing.T) {
		took := handOver(t, pool, 2, 2, 10, func(c *Client) { c.issuer = silent{c.issuer} })
		if p50 := took[len(took)/2]; p50 < 10*time.Millisecond {
			t.Errorf("by polls the median is %v", p50)
		}
	})
}

// silent hides that an issuer can tell of releases.
type silent struct{ issuer }

func handOver(t *testing.T, pool *pgxpool.Pool, crowd, clients, handOvers int, change func(*Client)) (took []time.Duration) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	crew := make([]*Client, clients)
	for i := range crew {
		crew[i] = newTestClient(t, pool, &Options{PollInterval: 200 * time.Millisecond, RenewConns: 1})
		if change != nil {
			change(crew[i])
		}
	}
	var mu sync.Mutex
	var released time.Time
	var by, last int
	var wg sync.WaitGroup
	for i := range crowd {
		wg.Go(func() {
			for {
				lease, err := crew[i%clients].Acquire(ctx, t.Name(), &AcquireOptions{TTL: time.Minute})
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

// TestTakeover: an expiring lease is taken over within TTL + 200 ms, by a waiter
// that is told of releases and by one that polls.
func TestTakeover(t *testing.T) {
	pool := migrated(t)
	for name, change := range map[string]func(*Client){
		"notified": func(*Client) {},
		"polling":  func(c *Client) { c.issuer = silent{c.issuer} },
	} {
		t.Run(name, func(t *testing.T) {
			holder, client := newTestClient(t, pool, nil), newTestClient(t, pool, &Options{PollInterval: time.Minute})
			change(client)
			var worst time.Duration
			for range 5 {
				mustTry(t, holder, name, 300*time.Millisecond)
				expires := rowOf(t, pool, name).ExpiresAt
				next := <-waits(t, client, name, time.Minute)
				worst = max(worst, next.AcquiredAt().Sub(expires))
				if next.AcquiredAt().Before(expires) {
					t.Errorf("granted %v too early", expires.Sub(next.AcquiredAt()))
				}
				next.Release(t.Context())
			}
			t.Logf("the latest %v after the expiry", worst)
			if worst > 200*time.Millisecond {
				t.Errorf("granted %v after the expiry", worst)
			}
		})
	}
}
