package leasetest

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/internal/faultproxy"
)

// Proxy is a TCP proxy in front of the database that loses or delays responses.
type Proxy struct {
	Cut   atomic.Int64 // how many responses to swallow, with their connection
	Drop  atomic.Int64 // how many requests to swallow, with their connection
	Delay atomic.Int64 // of every response, in nanoseconds
	// Gate blocks new connections until it is closed.
	Gate atomic.Pointer[chan struct{}]
	// If this function is set, the proxy calls it before it forwards a response.
	Answered atomic.Pointer[func()]

	proxy *faultproxy.Proxy
}

// BehindProxy returns a pool whose connections go through a proxy, including
// those of the client made on it.
func BehindProxy(t testing.TB, url string) (*pgxpool.Pool, *Proxy) {
	t.Helper()
	proxy, err := faultproxy.New("", "", nil) // the first connection says where to
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	p := &Proxy{proxy: proxy}
	proxy.Set(p.pass)
	proxy.OnConnect(p.open)
	pool := Dial(t, url, func(c *pgxpool.Config) {
		// A ping of a connection that was idle for a second would also be cut.
		c.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
		c.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if addr != proxy.Addr() { // as a request to cancel has it
				proxy.Backend(network, addr)
			}
			return new(net.Dialer).DialContext(ctx, "tcp", proxy.Addr())
		}
	})
	return pool, p
}

// open waits at the gate.
func (p *Proxy) open() bool {
	if gate := p.Gate.Load(); gate != nil {
		select {
		case <-*gate:
		case <-p.proxy.Done():
		}
	}
	return true
}

// pass decides about a request or a response.
func (p *Proxy) pass(m *faultproxy.Message) {
	lose := &p.Drop
	if m.Answer {
		if f := p.Answered.Load(); f != nil {
			(*f)()
		}
		m.Delay = time.Duration(p.Delay.Load())
		lose = &p.Cut
	}
	if takeOne(lose) {
		m.Fate = faultproxy.Cut
	}
}

// takeOne takes one off a count that is not zero.
func takeOne(count *atomic.Int64) bool {
	for n := count.Load(); n > 0; n = count.Load() {
		if count.CompareAndSwap(n, n-1) {
			return true
		}
	}
	return false
}
