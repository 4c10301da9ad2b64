package zk_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/faultproxy"
	"github.com/fencepost-go/fencepost/internal/suites/issuers/servers"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

// lagging is an ensemble in which one follower can be kept from hearing the leader.
type lagging struct {
	*servers.ZooKeeper
	leader, follower int

	mu   sync.Mutex
	gate chan struct{} // not nil while the follower hears nothing
}

func startLagging(t *testing.T) *lagging {
	t.Helper()
	type link struct{ follower, leader int }
	l, proxies := &lagging{}, map[link]*faultproxy.Proxy{}
	l.ZooKeeper = servers.StartZooKeeperVia(t, 3, func(follower, leader int, addr string) string {
		p, err := faultproxy.New("tcp", addr, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		proxies[link{follower, leader}] = p
		return p.Addr()
	})
	l.leader = l.Leader(t)
	l.follower = (l.leader + 1) % 3
	p := proxies[link{l.follower, l.leader}]
	p.Set(func(m *faultproxy.Message) {
		l.mu.Lock()
		gate := l.gate
		l.mu.Unlock()
		if !m.Answer || gate == nil {
			return
		}
		select {
		case <-gate:
		case <-p.Done():
		}
	})
	return l
}

// behind calls f, whose reads the follower must not serve before it has caught up:
// the follower learns nothing of what write does until f had time to go wrong.
func (l *lagging) behind(t *testing.T, write func(), stale func() bool, f func() error) {
	t.Helper()
	gate := make(chan struct{})
	l.mu.Lock()
	l.gate = gate
	l.mu.Unlock()
	write()
	if !stale() {
		t.Error("control: the follower is not behind the leader")
	}
	result := make(chan error, 1)
	go func() { result <- f() }()
	time.Sleep(time.Second)
	l.mu.Lock()
	l.gate = nil
	l.mu.Unlock()
	close(gate)
	if err := <-result; err != nil {
		t.Error(err)
	}
}

// TestServerBehind: a follower serves reads of what it knows. What the issuer says
// of a lease is current, though its server has yet to hear of the grant or the
// release.
func TestServerBehind(t *testing.T) {
	l := startLagging(t)
	addr := l.Nodes[l.follower].Addr
	bare := client(t, addr)
	near, far := issuer(t, nil, l.Nodes[l.leader].Addr), issuer(t, nil, addr)
	sees := func(resource string) bool {
		t.Helper()
		ok, _, err := bare.Exists("/fencepost/r-" + resource + "/lock")
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	for _, resource := range []string{"watched", "released", "renewed", "freed", "waited"} { // sessions and containers
		if _, err := far.Release(t.Context(), acquire(t, far, resource, "first")); err != nil {
			t.Fatal(err)
		}
		if w, err := far.Watch(t.Context(), driver.Watch{Resource: resource}, func() {}); err != nil {
			t.Fatal(err)
		} else {
			w.Stop()
		}
	}

	var claim guard.Claim
	grant := func(resource string) func() { return func() { claim = acquire(t, near, resource, "a") } }
	release := func() {
		if freed, err := near.Release(t.Context(), claim); err != nil || !freed {
			t.Fatalf("freed %v, %v", freed, err)
		}
	}
	unseen := func(resource string) func() bool { return func() bool { return !sees(resource) } }
	seen := func(resource string) func() bool { return func() bool { return sees(resource) } }
	await := func(resource string) {
		t.Helper()
		if _, err := bare.Sync("/fencepost"); err != nil || !sees(resource) {
			t.Fatalf("the follower does not catch up: %v", err)
		}
	}

	l.behind(t, grant("watched"), unseen("watched"), func() error {
		w, err := far.Watch(t.Context(), driver.Watch{Resource: "watched"}, func() {})
		if err != nil {
			return err
		}
		defer w.Stop()
		if w.Held == nil || w.Held.Token != claim.Token {
			return errors.New("a lease that was granted is reported free")
		}
		return nil
	})
	l.behind(t, grant("released"), unseen("released"), func() error {
		freed, err := far.Release(t.Context(), claim)
		if err == nil && !freed {
			err = errors.New("a release from another process freed nothing, and the lease runs")
		}
		return err
	})
	l.behind(t, grant("renewed"), unseen("renewed"), func() error {
		results := make([]driver.Renewed, 1)
		far.Renew(t.Context(), []driver.Renewal{{Claim: claim, TTL: ttl}}, results)
		if results[0].Err == nil && results[0].State != driver.Extended {
			return errors.New("a renewal from another process says that the lease is over, and it runs")
		}
		return results[0].Err
	})
	grant("freed")()
	await("freed")
	l.behind(t, release, seen("freed"), func() error {
		w, err := far.Watch(t.Context(), driver.Watch{Resource: "freed"}, func() {})
		if err != nil {
			return err
		}
		defer w.Stop()
		if w.Held != nil {
			return errors.New("a lease that was released is reported held")
		}
		return nil
	})
	grant("waited")()
	await("waited")
	l.behind(t, release, seen("waited"), func() error {
		r := ask("waited", "b")
		r.Waiting = true
		_, err := far.Acquire(t.Context(), r)
		return err
	})
}
