package redis_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/faultproxy"
	"github.com/fencepost-go/fencepost/internal/longtest"
	"github.com/fencepost-go/fencepost/internal/process"
	"github.com/fencepost-go/fencepost/internal/suites/issuers/servers"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/redislock"
)

// TestP3TokensSurviveAFailover: the master is lost together with a grant that
// its replica does not have. The replica that takes over issues higher tokens;
// a plain counter repeats the lost one.
func TestP3TokensSurviveAFailover(t *testing.T) {
	master := servers.StartRedis(t)
	link, err := faultproxy.New("tcp", master.Addr, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer link.Close()
	replica := servers.StartRedis(t, "--replicaof", "127.0.0.1 "+link.Addr()[len("127.0.0.1:"):])
	s := &server{}
	c, r := s.client(t, master.Addr), s.client(t, replica.Addr)
	if err := c.Set(t.Context(), "there", "1", 0).Err(); err != nil {
		t.Fatal(err)
	}
	for r.Get(t.Context(), "there").Val() != "1" { // until the replica follows
		if err := t.Context().Err(); err != nil {
			t.Fatal(err)
		}
	}
	link.Set(func(m *faultproxy.Message) { m.Fate = faultproxy.Drop }) // what is sent now is lost
	lost := acquire(t, s.issuer(t, master.Addr), "r", "a")
	plain := c.Incr(t.Context(), "plain").Val()
	master.Kill()
	if err := r.Do(t.Context(), "REPLICAOF", "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
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
		if err != nil {
			t.Fatal(err)
		}
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
	if err != nil {
		t.Fatal(err)
	}
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
