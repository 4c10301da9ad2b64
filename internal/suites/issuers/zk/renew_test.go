package zk_test

import (
	"context"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
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
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
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
