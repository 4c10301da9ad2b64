package failover_test

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/issuers/servers"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

// TestPairs measures acquire and release of each issuer beside the two requests
// that its engine needs at least, in turns. It prints and asserts nothing, and
// runs with FENCEPOST_BENCH=1 alone, on a machine that does nothing else.
func TestPairs(t *testing.T) {
	if os.Getenv("FENCEPOST_BENCH") == "" {
		t.Skip("set FENCEPOST_BENCH=1")
	}
	const n = 300
	measure := func(name string, ttl time.Duration, i driver.Issuer, floor func(k int) error) {
		defer i.Close()
		pair := func(k int) error {
			g, err := i.Acquire(t.Context(), driver.Request{Resource: "bench", LeaseID: fmt.Sprint(name, k), Owner: "o", TTL: ttl, Timeout: ttl})
			if err != nil {
				return err
			}
			_, err = i.Release(t.Context(), guard.Claim{Resource: "bench", LeaseID: fmt.Sprint(name, k), Token: g.Token})
			return err
		}
		took := map[bool][]time.Duration{}
		for k := range 2*n + 40 {
			own := k%2 == 0
			f := floor
			if own {
				f = pair
			}
			began := time.Now()
			if err := f(k); err != nil {
				t.Fatal(name, err)
			}
			if k >= 40 { // warm
				took[own] = append(took[own], time.Since(began))
			}
		}
		p50 := func(d []time.Duration) time.Duration { slices.Sort(d); return d[len(d)/2] }
		a, b := p50(took[true]), p50(took[false])
		t.Logf("%-10s pair p50 %v, p99 %v, %.0f/s; floor p50 %v; ratio %.2f", name, a.Round(time.Microsecond), took[true][n*99/100].Round(time.Microsecond),
			float64(time.Second)/float64(a), b.Round(time.Microsecond), float64(b)/float64(a))
	}

	e := servers.StartEtcd(t, 3)
	c := etcd(t, e.Addrs()...)
	measure("etcd", 10*time.Second, etcdIssuer(t, e.Addrs()...), func(k int) error {
		_, err := c.Txn(t.Context()).If(clientv3.Compare(clientv3.CreateRevision("floor"), "=", 0)).Then(clientv3.OpPut("floor", "x")).Commit()
		if err == nil {
			_, err = c.Txn(t.Context()).Then(clientv3.OpDelete("floor")).Commit()
		}
		return err
	})

	z := servers.StartZooKeeper(t, 3)
	conn, _, err := zk.Connect(z.Addrs(), 8*time.Second, zk.WithLogInfo(false))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	measure("ZooKeeper", 20*servers.ZooKeeperTick, zooKeeperIssuer(t, 3, z.Addrs()...), func(k int) error {
		_, err := conn.Create("/floor", []byte("x"), zk.FlagEphemeral, zk.WorldACL(zk.PermAll))
		if err == nil {
			err = conn.Delete("/floor", -1)
		}
		return err
	})

	r := servers.StartRedis(t, "--appendonly", "yes", "--appendfsync", "everysec")
	rc := redisClient(r.Addr)
	defer rc.Close()
	set := rc.ScriptLoad(t.Context(), `return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])`).Val()
	del := rc.ScriptLoad(t.Context(), `if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`).Val()
	measure("Redis", 10*time.Second, redisIssuer(t, redisClient(r.Addr)), func(k int) error {
		err := rc.EvalSha(t.Context(), set, []string{"floor"}, "x", 10000).Err()
		if err == nil {
			err = rc.EvalSha(t.Context(), del, []string{"floor"}, "x").Err()
		}
		return err
	})
}
