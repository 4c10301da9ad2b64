package redis_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/faultproxy"
	"github.com/fencepost-go/fencepost/internal/longtest"
	"github.com/fencepost-go/fencepost/internal/process"
	"github.com/fencepost-go/fencepost/internal/suites/issuers/servers"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/redislock"
)

// twoNodes is a Do that sends the commands on resources that begin with "b" to a
// second server, on which the scripts read a clock that is behind. before is
// called before each of those commands; it may be nil.
func twoNodes(t *testing.T, behind time.Duration, before func(args []any)) redislock.Do {
	t.Helper()
	a, b := startServer(t), startServer(t)
	first, second := a.client(t, a.addr), b.client(t, b.addr)
	return func(ctx context.Context, args ...any) (any, error) {
		for _, arg := range args {
			if key, ok := arg.(string); !ok || !strings.HasPrefix(key, "fencepost:{b") {
				continue
			}
			if args[0] == "EVALSHA" { // so that the text comes
				return nil, errors.New("NOSCRIPT No matching script")
			}
			if before != nil {
				before(args)
			}
			if args[0] == "EVAL" {
				args[1] = strings.Replace(args[1].(string), "return t[1] * 1000 + ", fmt.Sprintf("return t[1] * 1000 - %d + ", behind.Milliseconds()), 1)
			}
			return second.Do(ctx, args...).Result()
		}
		return first.Do(ctx, args...).Result()
	}
}

// TestClusterClocksDiffer: the clocks of two nodes differ a little, as clocks do.
// Resources that were never leased are granted on both. The control is an issuer
// that takes the two for one server.
func TestClusterClocksDiffer(t *testing.T) {
	refused := func(opts *redislock.Options) (n int, last error) {
		i, err := redislock.New(twoNodes(t, 200*time.Millisecond, nil), opts)
		testkit.Must(t, err)
		for k := range 20 {
			for _, node := range []string{"a", "b"} {
				if _, err := i.Acquire(t.Context(), ask(fmt.Sprint(node, k), "x")); err != nil {
					n, last = n+1, err
				}
			}
		}
		return n, last
	}
	if n, last := refused(&redislock.Options{Cluster: true}); n > 0 {
		t.Errorf("%d of 40 resources were refused, such as: %v", n, last)
	}
	n, last := refused(nil)
	if n == 0 || !errors.Is(last, guard.ErrMarkAhead) {
		t.Fatalf("control: one server whose clock went back: %d refusals, %v", n, last)
	}
	if strings.Contains(last.Error(), "lost the counter") || !strings.Contains(last.Error(), "has no counter") {
		t.Errorf("nothing is known to be lost: %v", last)
	}
}

// TestClusterServerWentBack: a node loses its data and its clock is set back. The
// issuer that has seen the later time there refuses, also with Options.Cluster.
func TestClusterServerWentBack(t *testing.T) {
	s := startServer(t)
	c := s.client(t, s.addr)
	behind := int64(0)
	i, err := redislock.New(func(ctx context.Context, args ...any) (any, error) {
		if args[0] == "EVALSHA" {
			return nil, errors.New("NOSCRIPT No matching script")
		}
		if args[0] == "EVAL" {
			args[1] = strings.Replace(args[1].(string), "return t[1] * 1000 + ", fmt.Sprintf("return t[1] * 1000 - %d + ", behind), 1)
		}
		return c.Do(ctx, args...).Result()
	}, &redislock.Options{Cluster: true})
	testkit.Must(t, err)
	before := acquire(t, i, "r", "a")
	testkit.Must(t, c.FlushAll(t.Context()).Err())
	behind = 3_600_000
	if g, err := i.Acquire(t.Context(), ask("r", "b")); !errors.Is(err, guard.ErrMarkAhead) {
		t.Errorf("%+v, %v after %v; want ErrMarkAhead", g, err, before.Token)
	}
}

// TestP8ClusterClocksDiffer: an acquire that comes after its timeout is refused by
// the clock of the node that it comes to, though another node's is an hour ahead.
func TestP8ClusterClocksDiffer(t *testing.T) {
	const timeout = 2 * time.Second
	late := false
	acquires := func(args []any) bool { return late && strings.Contains(args[1].(string), "'granted'") }
	nodes := twoNodes(t, time.Hour, func(args []any) {
		if acquires(args) {
			time.Sleep(timeout + 100*time.Millisecond)
		}
	})
	responses := make(chan any, 1)
	i, err := redislock.New(func(ctx context.Context, args ...any) (any, error) {
		response, err := nodes(context.WithoutCancel(ctx), args...) // it is on its way when ctx ends
		if err == nil && acquires(args) {
			responses <- response
		}
		return response, err
	}, &redislock.Options{Cluster: true})
	testkit.Must(t, err)
	acquire(t, i, "a", "x")
	late = true
	r := ask("b", "x")
	r.Timeout = timeout
	if g, err := i.Acquire(t.Context(), r); !errors.Is(err, guard.ErrOutcomeUnknown) {
		t.Errorf("an acquire without a response: %+v, %v", g, err)
	}
	if response := (<-responses).([]any); response[0] != "late" {
		t.Errorf("the node's response to an acquire that came after its timeout: %v", response)
	}
}

// TestConformanceCluster runs the suite on a cluster of one node, which refuses
// commands on keys of several slots.
func TestConformanceCluster(t *testing.T) {
	s := startServer(t, "--cluster-enabled", "yes")
	c := s.client(t, s.addr)
	testkit.Must(t, c.Do(t.Context(), "CLUSTER", "ADDSLOTSRANGE", 0, 16383).Err())
	testkit.Eventually(t, "the cluster", func() bool { return strings.Contains(c.ClusterInfo(t.Context()).Val(), "cluster_state:ok") })
	conformance(t, s.addr, func(t testing.TB, addr string) *redislock.Issuer {
		t.Helper()
		c := s.client(t, addr)
		i, err := redislock.New(doOf(c), &redislock.Options{Subscribe: subscribeOf(c), Cluster: true})
		testkit.Must(t, err)
		t.Cleanup(func() { i.Close() })
		return i
	})
}

// TestP3TokensSurviveAFailover: the master is lost together with a grant that
// its replica does not have. The replica that takes over issues higher tokens;
// a plain counter repeats the lost one.
func TestP3TokensSurviveAFailover(t *testing.T) {
	master := servers.StartRedis(t)
	link, err := faultproxy.New("tcp", master.Addr, nil)
	testkit.Must(t, err)
	defer link.Close()
	replica := servers.StartRedis(t, "--replicaof", "127.0.0.1 "+link.Addr()[len("127.0.0.1:"):])
	s := &server{}
	c, r := s.client(t, master.Addr), s.client(t, replica.Addr)
	testkit.Must(t, c.Set(t.Context(), "there", "1", 0).Err())
	for r.Get(t.Context(), "there").Val() != "1" { // until the replica follows
		testkit.Must(t, t.Context().Err())
	}
	link.Set(func(m *faultproxy.Message) { m.Fate = faultproxy.Drop }) // what is sent now is lost
	lost := acquire(t, s.issuer(t, master.Addr), "r", "a")
	plain := c.Incr(t.Context(), "plain").Val()
	master.Kill()
	testkit.Must(t, r.Do(t.Context(), "REPLICAOF", "NO", "ONE").Err())
	if n := r.Exists(t.Context(), "fencepost:{r}:lease").Val(); n != 0 {
		t.Fatal("the replica was cut off and has the grant")
	}
	if next := acquire(t, s.issuer(t, replica.Addr), "r", "b"); next.Token <= lost.Token {
		t.Errorf("token %v after %v, which the failover lost", next.Token, lost.Token)
	}
	if again := r.Incr(t.Context(), "plain").Val(); again != plain {
		t.Errorf("control: a plain counter was at %d and is at %d after the failover", plain, again)
	}
}

// TestConformancePersistent runs the suite on a server that writes every command
// to its disk before it answers; in the long form also on one that does so
// every second.
func TestConformancePersistent(t *testing.T) {
	modes := []string{"always"}
	if longtest.Long {
		modes = append(modes, "everysec")
	}
	for _, fsync := range modes {
		t.Run(fsync, func(t *testing.T) {
			s := servers.StartRedis(t, "--appendonly", "yes", "--appendfsync", fsync)
			conformance(t, s.Addr, (&server{}).issuer)
		})
	}
}

// TestConformanceSentinel runs the suite on a master with two replicas that the
// clients find through Sentinel.
func TestConformanceSentinel(t *testing.T) {
	r := servers.StartRedisSentinel(t, 2)
	conformance(t, r.Nodes[0].Addr, func(t testing.TB, addr string) *redislock.Issuer {
		t.Helper()
		if addr != r.Nodes[0].Addr { // through the suite's network
			return (&server{}).issuer(t, addr)
		}
		c := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: servers.SentinelName, SentinelAddrs: r.Addrs(),
			MaxRetries: -1, DialerRetries: 1, PoolSize: 20, ContextTimeoutEnabled: true, ReadTimeout: testkit.Patience, WriteTimeout: testkit.Patience})
		t.Cleanup(func() { c.Close() })
		i, err := redislock.New(doOf(c), &redislock.Options{Subscribe: subscribeOf(c)})
		testkit.Must(t, err)
		t.Cleanup(func() { i.Close() })
		return i
	})
}

// TestP3TokensSurviveKill: a server that keeps everything is killed: the lease
// runs on and the tokens grow.
func TestP3TokensSurviveKill(t *testing.T) {
	p := servers.StartRedis(t, "--appendonly", "yes", "--appendfsync", "always")
	s := &server{}
	held := acquire(t, s.issuer(t, p.Addr), "r", "a")
	p.Kill()
	p.Start()
	i := s.issuer(t, p.Addr)
	if again := acquire(t, i, "r", "a"); again != held {
		t.Errorf("after a kill the lease is %+v, it was %+v", again, held)
	}
	if freed, err := i.Release(t.Context(), held); !freed || err != nil {
		t.Fatal(freed, err)
	}
	if next := acquire(t, i, "r", "b"); next.Token <= held.Token {
		t.Errorf("token %v after %v", next.Token, held.Token)
	}
}

// TestRefusals: with a replica, a server behind TLS, one that is no Redis, or
// none at all, nothing is granted, and the error says why.
func TestRefusals(t *testing.T) {
	master := servers.StartRedis(t)
	replica := servers.StartRedis(t, "--replicaof", "127.0.0.1 "+master.Addr[len("127.0.0.1:"):])
	for name, test := range map[string]struct {
		addr, want string
		certain    bool
	}{
		"a replica":              {replica.Addr, "READONLY", true},
		"a server that uses TLS": {alerting(t), "", false},
		"nobody there":           {process.FreeAddr(t), "", false},
	} {
		s := &server{}
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
		g, err := s.issuer(t, test.addr).Acquire(ctx, ask("r", "a"))
		cancel()
		if err == nil || g.Token != guard.NoToken || !strings.Contains(err.Error(), test.want) || test.certain && !errors.Is(err, guard.ErrUnavailable) {
			t.Errorf("%s: %+v, %v; want an error that says %q", name, g, err, test.want)
		}
	}
	if n := (&server{}).client(t, master.Addr).DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("%d keys were written", n)
	}
}

// alerting accepts connections and answers like a TLS server that is contacted
// without TLS.
func alerting(t testing.TB) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conn.Write([]byte("\x15\x03\x03\x00\x02\x02\x46"))
			conn.Close()
		}
	}()
	return l.Addr().String()
}
