package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencepost-go/fencepost/internal/suites/issuers/servers"
	"github.com/fencepost-go/fencepost/internal/suites/process"
)

// redlock shows on three real servers why Redlock issues no tokens: two holders
// at once, and a number that falls. lockclient/REDLOCK.md says what to use.
func redlock(ctx context.Context, t *process.Run, out io.Writer) error {
	redis.SetLogger(silent{})
	var nodes []*process.Server
	for range 3 {
		nodes = append(nodes, servers.StartRedis(t))
	}
	lock := func(holder string, reached ...int) (token int64, err error) {
		votes := 0
		for _, n := range reached { // the third is slow or down; a majority does not need it
			c := redis.NewClient(&redis.Options{Addr: nodes[n].Addr})
			ok, err := c.SetNX(ctx, "lock", holder, time.Minute).Result()
			if err == nil && ok {
				votes++
				token = max(token, c.Incr(ctx, "counter").Val())
			}
			c.Close()
		}
		if votes < 2 {
			return 0, fmt.Errorf("%s got %d of 3 servers", holder, votes)
		}
		return token, nil
	}
	unlock := func() {
		for _, n := range nodes {
			c := redis.NewClient(&redis.Options{Addr: n.Addr})
			c.Del(ctx, "lock")
			c.Close()
		}
	}
	if _, err := lock("x", 1, 2); err != nil { // so server 2 has counted one
		return err
	}
	unlock()
	for range 2 {
		if _, err := lock("x", 0, 1); err != nil {
			return err
		}
		unlock()
	}
	a, err := lock("a", 0, 1)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "a has the lock for a minute by servers 0 and 1; the highest counter is %d\n", a)
	if _, err := lock("b", 1); err == nil { // which b needs, as a has server 0
		return errors.New("server 1 grants what a has, before anything happened")
	}
	nodes[1].Kill()
	nodes[1].Start()
	fmt.Fprintln(out, "server 1 restarts; it kept nothing")
	b, err := lock("b", 1, 2)
	if err != nil {
		return fmt.Errorf("a second holder was not granted the lock: %w", err)
	}
	fmt.Fprintf(out, "b has the lock as well, by servers 1 and 2; the highest counter is %d\n", b)
	fmt.Fprintf(out, "two holders, and the later one has the lower number: %d, %d. A fence would refuse the right one.\n", a, b)
	fmt.Fprintln(out, "Use one Redis (redislock), etcd, ZooKeeper or PostgreSQL; lockclient/REDLOCK.md says why.")
	if b >= a {
		return errors.New("the numbers did not fall")
	}
	return nil
}
