package drivertest

import (
	"net"
	"sync"
	"testing"
	"time"
)

// Proxy is a TCP proxy in front of an engine, and a [Network]. What a client
// sent before it closed its connection still arrives, as from a busy router.
type Proxy struct {
	listener         net.Listener
	network, backend string

	mu       sync.Mutex
	holding  bool
	refusing bool // new connections, until what was held is answered
	conns    map[*proxied]struct{}
}

// proxied is one connection through the proxy.
type proxied struct {
	p              *Proxy
	client, server net.Conn

	mu       sync.Mutex
	kept     []byte
	ended    bool // the client closed
	passing  bool // what was held is in transit and not answered yet
	answered chan struct{}
}

// NewProxy listens on loopback for the test's duration and forwards connections
// to backend; network and backend are as for net.Dial.
func NewProxy(t testing.TB, network, backend string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{listener: l, network: network, backend: backend, conns: map[*proxied]struct{}{}}
	go p.serve()
	t.Cleanup(p.close)
	return p
}

// Addr is where clients connect to.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

func (p *Proxy) serve() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		refused := p.refusing
		p.mu.Unlock()
		if refused {
			client.Close()
			continue
		}
		server, err := net.Dial(p.network, p.backend)
		if err != nil {
			client.Close()
			continue
		}
		c := &proxied{p: p, client: client, server: server, answered: make(chan struct{}, 1)}
		p.mu.Lock()
		p.conns[c] = struct{}{}
		p.mu.Unlock()
		go c.requests()
		go c.answers()
	}
}

func (c *proxied) requests() {
	buf := make([]byte, 64<<10)
	for {
		n, err := c.client.Read(buf)
		c.p.mu.Lock()
		hold := c.p.holding
		c.p.mu.Unlock()
		c.mu.Lock()
		if n > 0 {
			if hold || len(c.kept) > 0 {
				// After the sender gave up, it sends a goodbye or a
				// cancellation: that is lost.
				c.kept = append(c.kept, buf[:n]...)
			} else if _, werr := c.server.Write(buf[:n]); werr != nil {
				err = werr
			}
		}
		if err != nil {
			c.ended = true
			if len(c.kept) == 0 && !c.passing {
				c.server.Close()
			}
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
	}
}

func (c *proxied) answers() {
	buf := make([]byte, 64<<10)
	for {
		n, err := c.server.Read(buf)
		if n > 0 {
			c.client.Write(buf[:n])
		}
		if n > 0 || err != nil {
			select {
			case c.answered <- struct{}{}:
			default:
			}
		}
		if err != nil {
			c.client.Close()
			c.server.Close()
			c.p.mu.Lock()
			delete(c.p.conns, c)
			c.p.mu.Unlock()
			return
		}
	}
}

// Hold holds requests from now on.
func (p *Proxy) Hold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holding, p.refusing = true, true
}

func (p *Proxy) all() []*proxied {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]*proxied, 0, len(p.conns))
	for c := range p.conns {
		all = append(all, c)
	}
	return all
}

// Holding reports whether a request is being held.
func (p *Proxy) Holding() bool {
	for _, c := range p.all() {
		c.mu.Lock()
		kept := len(c.kept)
		c.mu.Unlock()
		if kept > 0 {
			return true
		}
	}
	return false
}

// Deliver sends what was held and waits until the engine has answered it. Until
// then it refuses new connections: one might carry the cancellation of what was
// held.
func (p *Proxy) Deliver() {
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.refusing = false
	}()
	p.mu.Lock()
	p.holding = false
	p.mu.Unlock()
	for _, c := range p.all() {
		c.mu.Lock()
		kept := c.kept
		c.kept = nil
		if len(kept) == 0 {
			c.mu.Unlock()
			continue
		}
		// A client that closes now must not end the connection before the engine
		// has read what was held.
		c.passing = true
		select { // of an earlier request
		case <-c.answered:
		default:
		}
		c.server.Write(kept)
		c.mu.Unlock()
		select {
		case <-c.answered:
		case <-time.After(time.Minute):
		}
		c.mu.Lock()
		c.passing = false
		ended := c.ended
		c.mu.Unlock()
		if ended {
			c.server.Close()
		}
	}
}

func (p *Proxy) close() {
	p.listener.Close()
	for _, c := range p.all() {
		c.client.Close()
		c.server.Close()
	}
}
