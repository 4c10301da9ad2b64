package zk_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/faultproxy"
	"github.com/fencepost-go/fencepost/internal/suites/issuers/servers"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/driver/drivertest"
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
		testkit.Must(t, err)
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
	testkit.Check(t, <-result)
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
		testkit.Must(t, err)
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

// TestP7RenewalWhileTheLeaseRunsOut: a lease runs out while its renewal is on the way.
// The renewal does not promise what another is granted.
func TestP7RenewalWhileTheLeaseRunsOut(t *testing.T) {
	const short = 8 * time.Second
	z := startServers(t, 1)
	proxy := drivertest.NewProxy(t, "tcp", z.Nodes[0].Addr)
	i, other := issuer(t, nil, proxy.Addr()), issuer(t, nil, z.Addrs()...)
	r := ask("r", "a")
	r.TTL = short
	g, err := i.Acquire(t.Context(), r)
	testkit.Must(t, err)
	claim := guard.Claim{Resource: "r", LeaseID: "a", Token: g.Token}
	end := g.From + g.TTL + time.Second // see Deadlines in the documentation
	time.Sleep(end - driver.Now() - 150*time.Millisecond)
	proxy.Hold()
	results := make([]driver.Renewed, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), testkit.Patience)
		defer cancel()
		i.Renew(ctx, []driver.Renewal{{Claim: claim, TTL: short}}, results)
	}()
	time.Sleep(end - driver.Now() + 300*time.Millisecond)
	proxy.Deliver()
	<-done
	if results[0].State != driver.Extended {
		return
	}
	time.Sleep(300 * time.Millisecond)
	r.LeaseID = "b"
	next, err := other.Acquire(t.Context(), r)
	if left := results[0].From + results[0].TTL - driver.Now(); err == nil && left > 0 {
		t.Errorf("token %v is granted while the renewal says that token %v lasts another %v", next.Token, g.Token, left)
	}
}

// TestP7LeaseOutlivesItsSession: the process that was granted a lease is gone, and with it
// its session. Nobody else is granted the lease before the holder's deadline, another
// process can renew it, and after its end it is granted.
func TestP7LeaseOutlivesItsSession(t *testing.T) {
	const short = 2 * time.Second
	z := startServers(t, 1)
	crashed, other := issuer(t, nil, z.Addrs()...), issuer(t, nil, z.Addrs()...)
	r := ask("r", "a")
	r.TTL = short
	g, err := crashed.Acquire(t.Context(), r)
	testkit.Must(t, err)
	crashed.Close()
	results := make([]driver.Renewed, 1)
	other.Renew(t.Context(), []driver.Renewal{{Claim: guard.Claim{Resource: "r", LeaseID: "a", Token: g.Token}, TTL: short}}, results)
	if results[0].State != driver.Extended {
		t.Fatalf("renewed by another process: %+v", results[0])
	}
	deadline := results[0].From + results[0].TTL
	r.LeaseID = "b"
	for {
		next, err := other.Acquire(t.Context(), r)
		if left := deadline - driver.Now(); err == nil {
			if next.Token <= g.Token || left > 0 {
				t.Errorf("token %v is granted after %v, which lasts another %v", next.Token, g.Token, left)
			}
			nodes, _, err := client(t, z.Addrs()...).Children("/fencepost/r-r")
			if slices.Sort(nodes); err != nil || len(nodes) != 2 || !strings.HasPrefix(nodes[0], "grant-") || nodes[1] != "lock" {
				t.Errorf("after the takeover the nodes are %q, %v", nodes, err)
			}
			return
		} else if !errors.Is(err, driver.ErrHeld) || left < -testkit.Patience {
			t.Fatalf("%v after the deadline: %v", -left, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// TestP3BaseOfARestoredSnapshot: a base is lost with a restored snapshot, and RaiseEpoch
// replaces it by another. A process that has the lost one in memory grants nothing from it,
// though as many changes were made as before: it refuses, or grants above what others were
// granted since.
func TestP3BaseOfARestoredSnapshot(t *testing.T) {
	for name, above := range map[string]guard.Token{
		"raised above the lost one": 1 << 36,
		"raised below the lost one": 1 << 50,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			z := startServers(t, 1)
			running, other := issuer(t, nil, z.Addrs()...), issuer(t, nil, z.Addrs()...)
			held := acquire(t, other, "held", "a")
			free(t, running, acquire(t, running, "r", "a"))
			saved := filepath.Join(t.TempDir(), "saved")
			z.Nodes[0].Kill()
			testkit.Must(t, os.CopyFS(saved, os.DirFS(z.Dirs[0])))
			z.Nodes[0].Start()
			// repeat calls f while there is no connection.
			repeat := func(f func() error) error {
				for began := time.Now(); ; time.Sleep(50 * time.Millisecond) {
					err := f()
					if !errors.Is(err, guard.ErrUnavailable) && !errors.Is(err, guard.ErrOutcomeUnknown) || time.Since(began) > testkit.Patience {
						return err
					}
				}
			}
			ask := func(resource, id string) (g driver.Grant, err error) {
				err = repeat(func() error { g, err = running.Acquire(t.Context(), ask(resource, id)); return err })
				return g, err
			}
			testkit.Must(t, repeat(func() error { _, err := other.Advance(t.Context(), "other", held.Token+above); return err }))
			if g, err := ask("held", "b"); !errors.Is(err, driver.ErrHeld) { // it learns the base
				t.Fatal(g, err)
			}
			z.Nodes[0].Kill()
			testkit.Must(t, errors.Join(os.RemoveAll(z.Dirs[0]), os.CopyFS(z.Dirs[0], os.DirFS(saved))))
			z.Nodes[0].Start()
			fresh := issuer(t, nil, z.Addrs()...)
			testkit.Must(t, repeat(func() error { _, err := fresh.RaiseEpoch(t.Context()); return err }))
			last := acquire(t, fresh, "r", "b")
			free(t, fresh, last)
			g, err := ask("r", "c")
			if err == nil && g.Token <= last.Token || err != nil && !errors.Is(err, guard.ErrMarkAhead) {
				t.Errorf("the running process: token %v after %v, %v", g.Token, last.Token, err)
			}
			if lost := above > 1<<40; lost && err == nil {
				t.Errorf("the base went back, and the running process is granted token %v", g.Token)
			}
		})
	}
}
