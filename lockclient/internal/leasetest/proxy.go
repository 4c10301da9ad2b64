package leasetest

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Proxy is a TCP proxy in front of the database that loses or delays answers.
type Proxy struct {
	net.Listener
	Cut   atomic.Int64 // how many answers to swallow, with their connection
	Drop  atomic.Int64 // how many requests to swallow, with their connection
	Delay atomic.Int64 // of every answer, in nanoseconds
	// Gate blocks new connections until it is closed.
	Gate atomic.Pointer[chan struct{}]
	// Answered, if set, is called at every answer before it is forwarded.
	Answered atomic.Pointer[func()]

	mu               sync.Mutex
	network, backend string
	conns            []net.Conn
}

// BehindProxy returns a pool whose connections go through a proxy, including
// those of the client made on it.
func BehindProxy(t testing.TB, url string) (*pgxpool.Pool, *Proxy) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{Listener: l}
	go p.serve()
	t.Cleanup(p.stop)
	pool := Dial(t, url, func(c *pgxpool.Config) {
		// A ping of a connection that was idle for a second would be cut, too.
		c.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
		c.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			p.mu.Lock()
			if addr != l.Addr().String() { // as a request to cancel has it
				p.network, p.backend = network, addr
			}
			p.mu.Unlock()
			return new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
		}
	})
	return pool, p
}

func (p *Proxy) serve() {
	for {
		client, err := p.Accept()
		if err != nil {
			return
		}
		if gate := p.Gate.Load(); gate != nil {
			<-*gate
		}
		p.mu.Lock()
		server, err := net.Dial(p.network, p.backend)
		if err != nil {
			client.Close()
			p.mu.Unlock()
			continue
		}
		p.conns = append(p.conns, client, server)
		p.mu.Unlock()
		closeBoth := func() { client.Close(); server.Close() }
		go func() { // requests
			defer closeBoth()
			p.copy(server, client, func() bool { return !takeOne(&p.Drop) })
		}()
		go func() { // answers
			defer closeBoth()
			p.copy(client, server, func() bool {
				if f := p.Answered.Load(); f != nil {
					(*f)()
				}
				time.Sleep(time.Duration(p.Delay.Load()))
				return !takeOne(&p.Cut)
			})
		}()
	}
}

func (p *Proxy) copy(dst, src net.Conn, pass func() bool) {
	buf := make([]byte, 64<<10)
	for {
		n, err := src.Read(buf)
		if err != nil || !pass() {
			return
		}
		if _, err := dst.Write(buf[:n]); err != nil {
			return
		}
	}
}

func (p *Proxy) stop() {
	p.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		c.Close()
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
