package failover_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/longtest"
	"github.com/fencepost-go/fencepost/internal/suites/issuers/etcdnode"
	"github.com/fencepost-go/fencepost/internal/suites/issuers/servers"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/etcdlock"
	"github.com/fencepost-go/fencepost/lockclient/redislock"
	"github.com/fencepost-go/fencepost/lockclient/zklock"
)

func etcd(t testing.TB, addrs ...string) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: addrs, DialTimeout: time.Minute, Logger: zap.NewNop(),
		DialKeepAliveTime: time.Second, DialKeepAliveTimeout: time.Second})
	testkit.Must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func etcdIssuer(t testing.TB, addrs ...string) driver.Issuer {
	t.Helper()
	i, err := etcdlock.New(etcd(t, addrs...), nil)
	testkit.Must(t, err)
	return i
}

func zooKeeperIssuer(t testing.TB, addrs ...string) driver.Issuer {
	t.Helper()
	i, err := zklock.New(addrs, nil)
	testkit.Must(t, err)
	return i
}

func redisIssuer(t testing.TB, c redis.UniversalClient) driver.Issuer {
	t.Helper()
	t.Cleanup(func() { c.Close() })
	i, err := redislock.New(func(ctx context.Context, args ...any) (any, error) { return c.Do(ctx, args...).Result() },
		&redislock.Options{Subscribe: func(ctx context.Context, channel string, message func(string)) (func(), error) {
			sub := c.Subscribe(ctx, channel)
			if _, err := sub.Receive(ctx); err != nil {
				sub.Close()
				return nil, err
			}
			go func() {
				for m := range sub.Channel() {
					message(m.Payload)
				}
			}()
			return func() { sub.Close() }, nil
		}})
	testkit.Must(t, err)
	return i
}

func redisClient(addr string) redis.UniversalClient {
	return redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true})
}

// verdict fails the test if a token repeated or fell, or a holder relied on its
// lease after another had been granted.
func (h *history) verdict(t *testing.T) {
	t.Helper()
	for _, problem := range append(h.disorder(), h.overlaps()...) {
		t.Error(problem)
	}
	t.Logf("%d grants", h.count())
}

// etcdLeader waits for a leader that a majority follows and returns its number.
func etcdLeader(t *testing.T, cluster *servers.Etcd) int {
	t.Helper()
	leader := -1
	testkit.Eventually(t, "a leader", func() bool {
		for n, addr := range cluster.Addrs() {
			c, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}, Logger: zap.NewNop()})
			testkit.Must(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			s, err := c.Status(ctx, addr)
			cancel()
			c.Close()
			if err == nil && s.Leader == s.Header.MemberId {
				leader = n
			}
		}
		return leader >= 0
	})
	return leader
}

// TestEtcdPartition: a node is cut off from the quorum, the leader or the one
// that the holder talks to, while others talk to the rest. Another is granted
// the lease on the other side, and by then no holder relies on its own.
func TestEtcdPartition(t *testing.T) {
	cluster := startLinkedEtcd(t, 3)
	const ttl = 3 * time.Second
	var issuers []driver.Issuer
	var probes []*clientv3.Client
	for _, addr := range cluster.Addrs() {
		issuers, probes = append(issuers, etcdIssuer(t, addr)), append(probes, etcd(t, addr))
	}
	writes := func(n int) bool { // whether a node is in a quorum
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := probes[n].Put(ctx, "probe", "")
		return err == nil
	}
	h := &history{}
	defer h.verdict(t)
	cuts := 0
	h.run(t, issuers, ttl, longtest.ByLength(2, 30), func(round int) {
		n := etcdLeader(t, cluster.Etcd)
		what := "the leading"
		if round%2 == 1 {
			n, what = h.holder(), "the holder's"
		}
		had := h.count()
		cluster.cut(n, true)
		// Until the other side has granted it twice: one of these may have been
		// in flight before.
		testkit.Eventually(t, fmt.Sprintf("grants of the others while %s node, %d, is cut off", what, n), func() bool { return h.count() >= had+2 })
		if writes(n) {
			t.Errorf("node %d writes though it is cut off", n)
		} else {
			cuts++
		}
		t.Logf("%s node, %d, was cut off: %d grants meanwhile", what, n, h.count()-had)
		cluster.cut(n, false)
		testkit.Eventually(t, fmt.Sprintf("node %d to come back", n), func() bool { return writes(n) })
	})
	t.Logf("%d cuts", cuts)
}

// TestEtcd: the leader is killed, the leader is stopped for longer than a TTL,
// and so is the node that one of the holders talks to.
func TestEtcd(t *testing.T) {
	cluster := servers.StartEtcd(t, 3)
	const ttl = 3 * time.Second
	issuers := []driver.Issuer{etcdIssuer(t, cluster.Addrs()...)}
	for _, addr := range cluster.Addrs() {
		issuers = append(issuers, etcdIssuer(t, addr))
	}
	h := &history{}
	defer h.verdict(t)
	h.run(t, issuers, ttl, longtest.ByLength(2, 33), func(round int) {
		n := etcdLeader(t, cluster)
		switch round % 3 {
		case 0:
			t.Logf("kill -9 of the leader, node %d", n)
			cluster.Nodes[n].Kill()
			time.Sleep(time.Duration(round%4) * time.Second)
			cluster.Nodes[n].Start()
		case 1:
			t.Logf("the leader, node %d, stands still", n)
			cluster.Nodes[n].Pause()
			time.Sleep(ttl + 2*time.Second)
			cluster.Nodes[n].Resume()
		case 2:
			n = (n + 1) % 3
			t.Logf("a follower, node %d, stands still", n)
			cluster.Nodes[n].Pause()
			time.Sleep(ttl + 2*time.Second)
			cluster.Nodes[n].Resume()
		}
	})
}

// TestZooKeeper: a follower is cut off from the leader while a holder speaks to
// it, the leader is killed, and the leader stands still.
func TestZooKeeper(t *testing.T) {
	z := startLinkedZooKeeper(t, 3)
	const ttl = 6 * servers.ZooKeeperTick
	issuers := []driver.Issuer{zooKeeperIssuer(t, z.Addrs()...)}
	for _, addr := range z.Addrs() {
		issuers = append(issuers, zooKeeperIssuer(t, addr))
	}
	h := &history{}
	defer func() {
		h.verdict(t)
		for n, node := range z.Nodes {
			if t.Failed() {
				t.Logf("node %d is %q and says: %s", n, z.Mode(n), node.Log())
			}
		}
	}()
	h.run(t, issuers, ttl, longtest.ByLength(2, 45), func(round int) {
		n := z.Leader(t)
		switch round % 3 {
		case 0:
			n = (n + 1 + round/3%2) % 3
			t.Logf("a follower, node %d, is cut off", n)
			z.cut(n, true)
			time.Sleep(2*ttl + 5*servers.ZooKeeperTick)
			z.cut(n, false)
		case 1:
			t.Logf("kill -9 of the leader, node %d", n)
			z.Nodes[n].Kill()
			time.Sleep(time.Duration(round%4) * time.Second)
			z.Nodes[n].Start()
		case 2:
			t.Logf("the leader, node %d, stands still", n)
			z.Nodes[n].Pause()
			time.Sleep(2 * ttl)
			z.Nodes[n].Resume()
		}
	})
}

// TestRedisRestart: a server that writes every command to its disk before it
// answers is killed, or stands still.
func TestRedisRestart(t *testing.T) {
	s := servers.StartRedis(t, "--appendonly", "yes", "--appendfsync", "always")
	const ttl = 2 * time.Second
	var issuers []driver.Issuer
	for range 4 {
		issuers = append(issuers, redisIssuer(t, redisClient(s.Addr)))
	}
	h := &history{}
	defer h.verdict(t)
	h.run(t, issuers, ttl, longtest.ByLength(2, 34), func(round int) {
		switch round % 2 {
		case 0:
			s.Kill()
			time.Sleep(time.Duration(round%5) * time.Second / 2)
			s.Start()
		case 1:
			s.Pause()
			time.Sleep(time.Duration(round%5+1) * time.Second / 2)
			s.Resume()
		}
	})
}

// TestRedisSentinel: the master is killed, or stands still, and a replica takes
// over that may lack what the master acknowledged. The tokens grow all the same;
// two holders are possible, which is Redis's residual risk, and then the fence
// refuses the one with the lower token.
func TestRedisSentinel(t *testing.T) {
	r := servers.StartRedisSentinel(t, 2)
	master := func() (n int) {
		testkit.Eventually(t, "a master", func() bool { n = masterOf(t.Context(), r); return n >= 0 })
		return n
	}
	const ttl = 2 * time.Second
	var issuers []driver.Issuer
	for range 4 {
		issuers = append(issuers, redisIssuer(t, redis.NewFailoverClient(&redis.FailoverOptions{MasterName: servers.SentinelName, SentinelAddrs: r.Addrs(),
			MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true, ReadTimeout: time.Second, WriteTimeout: time.Second})))
	}
	h := &history{}
	h.run(t, issuers, ttl, longtest.ByLength(1, 30), func(round int) {
		n := master()
		other := func() { testkit.Eventually(t, "a failover", func() bool { return master() != n }) }
		if round%2 == 0 {
			t.Logf("kill -9 of the master, node %d", n)
			r.Nodes[n].Kill()
			other()
			r.Nodes[n].Start()
		} else {
			t.Logf("the master, node %d, stands still", n)
			r.Nodes[n].Pause()
			other()
			r.Nodes[n].Resume()
		}
	})
	for _, problem := range h.disorder() {
		t.Error(problem)
	}
	overlaps := h.overlaps()
	t.Logf("%d grants, %d times a holder believed in its lease after another was granted", h.count(), len(overlaps))
	// The fence's verdict: only the highest token writes.
	store := guard.NewMemory()
	for _, g := range h.grants {
		if _, err := store.Admit(t.Context(), guard.Claim{Resource: "r", Token: g.token, LeaseID: fmt.Sprint(g.token)}); err != nil {
			t.Errorf("in the order of the grants, token %v: %v", g.token, err)
		}
	}
}

// TestOracle: a holder that relies on renewals that it never sent is reported.
func TestOracle(t *testing.T) {
	s := servers.StartRedis(t)
	h := &history{}
	h.run(t, []driver.Issuer{believer{redisIssuer(t, redisClient(s.Addr))}, redisIssuer(t, redisClient(s.Addr))}, time.Second, 1,
		func(int) { testkit.Eventually(t, "a report", func() bool { return len(h.overlaps()) > 0 }) })
	h.grants = append(h.grants, &grant{token: 1, answered: driver.Now()})
	if len(h.disorder()) == 0 {
		t.Error("a token that fell was not reported")
	}
}

type believer struct{ driver.Issuer }

func (believer) Renew(_ context.Context, _ []driver.Renewal, results []driver.Renewed) {
	for n := range results {
		results[n] = driver.Renewed{State: driver.Extended, From: driver.Now()}
	}
}

func TestMain(m *testing.M) {
	redis.SetLogger(silent{})
	etcdnode.Main()
	m.Run()
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}
