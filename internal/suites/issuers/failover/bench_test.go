package failover_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/suites/issuers/servers"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/redislock"
)

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
