package redis_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
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
		if err != nil {
			t.Fatal(err)
		}
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
	if err != nil {
		t.Fatal(err)
	}
	before := acquire(t, i, "r", "a")
	if err := c.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
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
	if err := c.Do(t.Context(), "CLUSTER", "ADDSLOTSRANGE", 0, 16383).Err(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the cluster", func() bool { return strings.Contains(c.ClusterInfo(t.Context()).Val(), "cluster_state:ok") })
	conformance(t, s.addr, func(t testing.TB, addr string) *redislock.Issuer {
		t.Helper()
		c := s.client(t, addr)
		i, err := redislock.New(doOf(c), &redislock.Options{Subscribe: subscribeOf(c), Cluster: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { i.Close() })
		return i
	})
}
