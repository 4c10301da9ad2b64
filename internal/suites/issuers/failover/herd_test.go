package failover_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/longtest"
	"github.com/fencepost-go/fencepost/internal/suites/issuers/servers"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/redislock"
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

// BenchmarkPairs measures acquire and release of each issuer and, in turns with
// them, the two requests that its engine needs at least for a lease that expires
// and has a token, and for Redis also for a lock without one. ns/op is for all;
// the metrics separate them.
func BenchmarkPairs(b *testing.B) {
	measure := func(b *testing.B, ttl time.Duration, i driver.Issuer, floor func() error, plain ...func() error) {
		defer i.Close()
		n := 0
		pair := func() error {
			n++
			id := fmt.Sprint(b.Name(), b.N, "-", n)
			g, err := i.Acquire(b.Context(), driver.Request{Resource: "bench", LeaseID: id, Owner: "o", TTL: ttl, Timeout: ttl})
			if err == nil {
				_, err = i.Release(b.Context(), guard.Claim{Resource: "bench", LeaseID: id, Token: g.Token})
			}
			return err
		}
		timed := func(do func() error) time.Duration {
			began := time.Now()
			if err := do(); err != nil {
				b.Fatal(err)
			}
			return time.Since(began)
		}
		for range 20 { // warm
			timed(pair)
			timed(floor)
		}
		var pairs, floors, plains []time.Duration
		for b.Loop() {
			pairs = append(pairs, timed(pair))
			floors = append(floors, timed(floor))
			for _, do := range plain {
				plains = append(plains, timed(do))
			}
		}
		p50 := func(d []time.Duration) float64 { slices.Sort(d); return float64(d[len(d)/2]) / 1e3 }
		own, least := p50(pairs), p50(floors)
		b.ReportMetric(own, "pair-p50-us")
		b.ReportMetric(float64(pairs[len(pairs)*99/100])/1e3, "pair-p99-us")
		b.ReportMetric(least, "floor-p50-us")
		b.ReportMetric(least/own, "of-floor")
		if len(plains) > 0 {
			b.ReportMetric(p50(plains)/own, "of-plain")
		}
	}
	b.Run("etcd", func(b *testing.B) {
		e := servers.StartEtcd(b, 3)
		c := etcd(b, e.Addrs()...)
		// A key that expires has an etcd lease. One lease can serve many keys, so
		// the minimum is two writes: the key is put, and deleted.
		lease, err := c.Grant(b.Context(), 3600)
		if err != nil {
			b.Fatal(err)
		}
		measure(b, 10*time.Second, etcdIssuer(b, e.Addrs()...), func() error {
			put, err := c.Txn(b.Context()).If(clientv3.Compare(clientv3.CreateRevision("floor"), "=", 0)).
				Then(clientv3.OpPut("floor", "x", clientv3.WithLease(lease.ID))).Commit()
			if err == nil {
				_, err = c.Txn(b.Context()).If(clientv3.Compare(clientv3.CreateRevision("floor"), "=", put.Header.Revision)).
					Then(clientv3.OpDelete("floor")).Commit()
			}
			return err
		})
	})
	b.Run("zookeeper", func(b *testing.B) {
		z := servers.StartZooKeeper(b, 3)
		conn, _, err := zk.Connect(z.Addrs(), 8*time.Second, zk.WithLogInfo(false))
		if err != nil {
			b.Fatal(err)
		}
		defer conn.Close()
		measure(b, 20*servers.ZooKeeperTick, zooKeeperIssuer(b, z.Addrs()...), func() error {
			_, err := conn.Create("/floor", []byte("x"), zk.FlagEphemeral, zk.WorldACL(zk.PermAll))
			if err == nil {
				err = conn.Delete("/floor", -1)
			}
			return err
		})
	})
	b.Run("redis", func(b *testing.B) {
		r := servers.StartRedis(b, "--appendonly", "yes", "--appendfsync", "everysec")
		rc := redisClient(r.Addr)
		defer rc.Close()
		set := rc.ScriptLoad(b.Context(), `return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])`).Val()
		del := rc.ScriptLoad(b.Context(), `if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`).Val()
		// A token is a second key, which outlives the lock, and the lock keeps it
		// for a retried request.
		grant := rc.ScriptLoad(b.Context(), `
			if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
			local t = redis.call('TIME')
			local token = string.format('%.0f', (t[1] * 1000 + math.floor(t[2] / 1000)) * 1024)
			local last = redis.call('GET', KEYS[2])
			if last and last >= token then token = redis.call('INCR', KEYS[2]) else redis.call('SET', KEYS[2], token) end
			redis.call('HSET', KEYS[1], 'id', ARGV[1], 'token', token)
			redis.call('PEXPIRE', KEYS[1], ARGV[2])
			return token`).Val()
		free := rc.ScriptLoad(b.Context(), `if redis.call('HGET', KEYS[1], 'id') == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`).Val()
		two := func(first, second string, keys ...string) func() error {
			return func() error {
				err := rc.EvalSha(b.Context(), first, keys, "x", 10000).Err()
				if err == nil {
					err = rc.EvalSha(b.Context(), second, keys[:1], "x").Err()
				}
				return err
			}
		}
		client := redisClient(r.Addr)
		defer client.Close()
		i, err := redislock.New(func(ctx context.Context, args ...any) (any, error) { return client.Do(ctx, args...).Result() }, nil)
		if err != nil {
			b.Fatal(err)
		}
		measure(b, 10*time.Second, i, two(grant, free, "floor", "token"), two(set, del, "plain"))
	})
}
