package main

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencepost-go/fencepost/internal/process"
	"github.com/fencepost-go/fencepost/internal/suites/issuers/servers"
)

// TestRedlock shows on three real servers why Redlock issues no tokens: two holders at once, and a
// number that falls. lockclient/REDLOCK.md says what to use: one Redis (redislock), etcd, ZooKeeper or
// PostgreSQL.
func TestRedlock(t *testing.T) {
	redis.SetLogger(silent{})
	started := &process.Run{}
	t.Cleanup(started.Close)
	var nodes []*process.Server
	for range 3 {
		nodes = append(nodes, servers.StartRedis(started))
	}
	lock := func(holder string, reached ...int) (token int64, granted bool) {
		votes := 0
		for _, n := range reached { // the third is slow or down; a majority does not need it
			c := redis.NewClient(&redis.Options{Addr: nodes[n].Addr})
			ok, err := c.SetNX(t.Context(), "lock", holder, time.Hour).Result()
			if err == nil && ok {
				votes++
				token = max(token, c.Incr(t.Context(), "counter").Val())
			}
			c.Close()
		}
		return token, votes >= 2
	}
	for _, reached := range [][]int{{1, 2}, {0, 1}, {0, 1}} { // so the servers have counted 2, 3 and 1
		if _, granted := lock("x", reached...); !granted {
			t.Fatalf("servers %v grant no free lock", reached)
		}
		for _, n := range nodes {
			c := redis.NewClient(&redis.Options{Addr: n.Addr})
			c.Del(t.Context(), "lock")
			c.Close()
		}
	}
	a, granted := lock("a", 0, 1)
	t.Logf("a has the lock for an hour by servers 0 and 1: %v; the highest counter is %d", granted, a)
	if _, second := lock("b", 1); !granted || second { // which b needs, as a has server 0
		t.Fatal("the control: before the restart, server 1 grants what a has")
	}
	nodes[1].Kill()
	nodes[1].Start()
	b, granted := lock("b", 1, 2)
	t.Logf("server 1 restarts and has kept nothing; b has the lock as well, by servers 1 and 2: %v; the highest counter is %d", granted, b)
	if !granted || b >= a {
		t.Errorf("two holders: %v; the later one has %d, the earlier one %d: a fence would refuse the right one", granted, b, a)
	}
}
