package failover_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/internal/longtest"
	"github.com/fencepost-go/fencepost/internal/suites/issuers/servers"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

// counting counts requests.
type counting struct {
	driver.Issuer
	attempts *atomic.Int64
}

func (c counting) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	c.attempts.Add(1)
	return c.Issuer.Acquire(ctx, r)
}

// TestNoHerd: a hundred processes (fewer in the short form) wait for one lease,
// each gets it once, and they ask at most twice for each grant. Each holds it
// long enough for the others to ask, if they did.
func TestNoHerd(t *testing.T) {
	n := longtest.ByLength(20, 100)
	for name, start := range map[string]func(t *testing.T) func() driver.Issuer{
		"etcd": func(t *testing.T) func() driver.Issuer {
			addrs := servers.StartEtcd(t, 1).Addrs()
			return func() driver.Issuer { return etcdIssuer(t, addrs...) }
		},
		"ZooKeeper": func(t *testing.T) func() driver.Issuer {
			addrs := servers.StartZooKeeper(t, 1).Addrs()
			return func() driver.Issuer { return zooKeeperIssuer(t, addrs...) }
		},
		"Redis": func(t *testing.T) func() driver.Issuer {
			addr := servers.StartRedis(t).Addr
			return func() driver.Issuer { return redisIssuer(t, redisClient(addr)) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			connect := start(t)
			ttl := time.Minute
			if name == "ZooKeeper" {
				ttl = 20 * servers.ZooKeeperTick // the most that its sessions may last
			}
			var attempts atomic.Int64
			open := func(name string) *lockclient.Client {
				locks, err := lockclient.New(counting{connect(), &attempts}, name, &lockclient.Options{Logger: slog.New(slog.DiscardHandler), OpTimeout: time.Minute})
				testkit.Must(t, err)
				return locks
			}
			first := open("first")
			held, err := first.Acquire(t.Context(), "r", &lockclient.AcquireOptions{TTL: ttl})
			testkit.Must(t, err)
			testkit.Must(t, held.KeepAlive(0))
			var wg sync.WaitGroup
			for k := range n {
				locks := open(fmt.Sprint("waiter-", k))
				wg.Go(func() {
					lease, err := locks.Acquire(t.Context(), "r", &lockclient.AcquireOptions{TTL: ttl})
					if err != nil {
						t.Error(err)
						return
					}
					testkit.Check(t, lease.KeepAlive(0))
					time.Sleep(100 * time.Millisecond)
					testkit.Check(t, lease.Release(t.Context()))
					locks.Close(context.WithoutCancel(t.Context()))
				})
			}
			testkit.Eventually(t, "all to wait", func() bool { return attempts.Load() >= int64(n)+1 })
			before := attempts.Load()
			testkit.Must(t, held.Release(t.Context()))
			wg.Wait()
			first.Close(context.WithoutCancel(t.Context()))
			per := float64(attempts.Load()-before) / float64(n)
			t.Logf("%d waiters: %d attempts before the first release, then %.2f for each grant", n, before-1, per)
			// On a slow machine waiters sometimes poll, so the short form
			// asserts only that a release does not wake all.
			if most := float64(longtest.ByLength(n/2, 2)); per > most {
				t.Errorf("%.2f attempts for each grant; want at most %v", per, most)
			}
		})
	}
}
