package failover_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/issuers/servers"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

// BenchmarkPairs measures acquire and release of each issuer and, in turns with
// them, the two requests that its engine needs at least. ns/op is for both; the
// metrics tell them apart.
func BenchmarkPairs(b *testing.B) {
	measure := func(b *testing.B, ttl time.Duration, i driver.Issuer, floor func() error) {
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
		var pairs, floors []time.Duration
		for b.Loop() {
			pairs = append(pairs, timed(pair))
			floors = append(floors, timed(floor))
		}
		p50 := func(d []time.Duration) float64 { slices.Sort(d); return float64(d[len(d)/2]) / 1e3 }
		own, least := p50(pairs), p50(floors)
		b.ReportMetric(own, "pair-p50-us")
		b.ReportMetric(float64(pairs[len(pairs)*99/100])/1e3, "pair-p99-us")
		b.ReportMetric(least, "floor-p50-us")
		b.ReportMetric(least/own, "of-floor")
	}
	b.Run("etcd", func(b *testing.B) {
		e := servers.StartEtcd(b, 3)
		c := etcd(b, e.Addrs()...)
		measure(b, 10*time.Second, etcdIssuer(b, e.Addrs()...), func() error {
			_, err := c.Txn(b.Context()).If(clientv3.Compare(clientv3.CreateRevision("floor"), "=", 0)).Then(clientv3.OpPut("floor", "x")).Commit()
			if err == nil {
				_, err = c.Txn(b.Context()).Then(clientv3.OpDelete("floor")).Commit()
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
		measure(b, 20*servers.ZooKeeperTick, zooKeeperIssuer(b, 3, z.Addrs()...), func() error {
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
		measure(b, 10*time.Second, redisIssuer(b, redisClient(r.Addr)), func() error {
			err := rc.EvalSha(b.Context(), set, []string{"floor"}, "x", 10000).Err()
			if err == nil {
				err = rc.EvalSha(b.Context(), del, []string{"floor"}, "x").Err()
			}
			return err
		})
	})
}
