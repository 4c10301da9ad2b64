package zk_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/driver/drivertest"
)

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
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
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
