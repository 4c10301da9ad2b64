package zk_test

import (
	"bytes"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/suites/issuers/servers"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/zklock"
)

// swallowing ends the connection instead of sending a request.
type swallowing struct {
	net.Conn
	request *atomic.Pointer[string] // what is in the request; nil for none
}

func (c swallowing) Write(p []byte) (int, error) {
	if s := c.request.Load(); s != nil && bytes.Contains(p, []byte(*s)) && c.request.CompareAndSwap(s, nil) {
		c.Conn.Close()
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// TestP7DoubtEndsNoOther: an acquire never reaches the servers, which its process cannot
// know. The lease ID is granted to another process, as when a lock server's client
// repeats its request at the next server. What the first process ends, in case it was
// granted the lease after all, is not that lease.
func TestP7DoubtEndsNoOther(t *testing.T) {
	const ttl = 10 * servers.ZooKeeperTick
	z := servers.StartZooKeeper(t, 1)
	var request atomic.Pointer[string]
	first := issuer(t, &zklock.Options{TickTime: servers.ZooKeeperTick, Dialer: func(network, address string, timeout time.Duration) (net.Conn, error) {
		conn, err := net.DialTimeout(network, address, timeout)
		return swallowing{conn, &request}, err
	}}, z.Addrs()...)
	second := issuer(t, &zklock.Options{TickTime: servers.ZooKeeperTick}, z.Addrs()...)
	r := driver.Request{Resource: "r", LeaseID: "twice", Owner: "o", TTL: ttl, Timeout: time.Minute}
	other := r
	other.Resource, other.LeaseID = "other", "a"
	kept, err := first.Acquire(t.Context(), other) // keeps the session
	if err != nil {
		t.Fatal(err)
	}
	what := "id-twice"
	request.Store(&what)
	if _, err := first.Acquire(t.Context(), r); !errors.Is(err, guard.ErrOutcomeUnknown) {
		t.Fatalf("%v; want ErrOutcomeUnknown", err)
	}
	held, err := second.Acquire(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	renew := func(i driver.Issuer, resource, id string, token guard.Token) driver.Renewed {
		results := make([]driver.Renewed, 1)
		i.Renew(t.Context(), []driver.Renewal{{Claim: guard.Claim{Resource: resource, LeaseID: id, Token: token}, TTL: ttl}}, results)
		return results[0]
	}
	for began := time.Now(); time.Since(began) < 2*ttl; time.Sleep(ttl / 20) {
		if got := renew(second, "r", "twice", held.Token); got.State == driver.Over {
			t.Fatalf("the lease was ended after %v though it was renewed", time.Since(began))
		}
		if got := renew(first, "other", "a", kept.Token); got.State == driver.Over {
			t.Fatal("the first session is over, which shows nothing")
		}
	}
}
