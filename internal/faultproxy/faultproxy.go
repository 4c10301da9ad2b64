// Package faultproxy is the one TCP proxy of this module's tests. It stands
// between clients and a server, the backend, and injects faults: it holds,
// delays, changes, loses and counts what passes, and cuts, resets and refuses
// connections. A test states the faults as one function; see [Proxy.Set].
package faultproxy

import (
	"io"
	"net"
	"sync"
	"time"
)

// Fate is what happens to a message.
type Fate int

// The fates. Cut and Reset lose nothing that was sent before the message.
const (
	Forward Fate = iota
	Drop         // the message is lost, and the connection stays
	Cut          // the message is lost, and the connection is closed on both sides
	Reset        // the message is lost, and both sides receive a TCP reset
)

// Message is a piece of what one side sends: what a read returned, or what
// [Options.Split] made of it. A rule may change Data, Fate and Delay.
type Message struct {
	Conn   *Conn
	Answer bool // the backend sent it
	Data   []byte
	Fate   Fate
	Delay  time.Duration // until it is passed on; what follows does not overtake it
}

// Options configures a [Proxy].
type Options struct {
	// Host is the loopback address to listen on; default 127.0.0.1.
	Host string
	// Split reads one message of a client; first says that it is the
	// connection's first. By default a message is what one read returns.
	Split func(r io.Reader, first bool) ([]byte, error)
}

// Proxy forwards connections to a backend. Its methods may be called at the same
// time.
type Proxy struct {
	addr  string
	split func(r io.Reader, first bool) ([]byte, error)
	done  chan struct{} // closed by Close
	wait  sync.WaitGroup

	mu               sync.Mutex
	listener         net.Listener // nil while the proxy is down
	network, backend string
	rule             func(*Message)
	connect          func() bool
	gate             chan struct{} // closed by Release; nil if nothing is held
	conns            map[*Conn]struct{}
}

// Conn identifies a connection.
type Conn struct {
	client, server net.Conn

	// Below Proxy.mu:
	held     bool          // a message waits for Release
	answered chan struct{} // closed by the response to what was held
	silent   bool          // the backend has ended the connection: no response comes
}

// New listens and forwards to a backend; network and backend are as for net.Dial.
func New(network, backend string, opts *Options) (*Proxy, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.Host == "" {
		o.Host = "127.0.0.1"
	}
	p := &Proxy{addr: net.JoinHostPort(o.Host, "0"), split: o.Split, done: make(chan struct{}), network: network, backend: backend, conns: map[*Conn]struct{}{}}
	return p, p.Up()
}

// Addr is where clients connect to.
func (p *Proxy) Addr() string { return p.addr }

// Done is closed by Close, for rules that wait.
func (p *Proxy) Done() <-chan struct{} { return p.done }

// change changes settings.
func (p *Proxy) change(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

// Set makes rule decide about every message from now on; nil forwards all. Each
// direction of each connection calls it, in the order of the stream. It may wait.
func (p *Proxy) Set(rule func(*Message)) { p.change(func() { p.rule = rule }) }

// OnConnect makes allow decide about every new connection from now on, before
// the proxy dials the backend. It may wait.
func (p *Proxy) OnConnect(allow func() bool) { p.change(func() { p.connect = allow }) }

// Backend sends new connections to another backend.
func (p *Proxy) Backend(network, backend string) {
	p.change(func() { p.network, p.backend = network, backend })
}

// Hold holds what clients send from now on, until Release.
func (p *Proxy) Hold() {
	p.change(func() {
		if p.gate == nil {
			p.gate = make(chan struct{})
		}
	})
}

// Held returns how many connections have a message that is held.
func (p *Proxy) Held() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		if c.held {
			n++
		}
	}
	return n
}

// Release passes on what was held, and returns when the backend has responded to
// it or closed the connection, or the rule has dropped it. If the client has closed
// the connection by then, the backend notices that only after its response.
func (p *Proxy) Release() {
	var answers []chan struct{}
	p.change(func() {
		for c := range p.conns {
			if c.held {
				c.held = false
				if !c.silent {
					c.answered = make(chan struct{})
					answers = append(answers, c.answered)
				}
			}
		}
		if p.gate != nil {
			close(p.gate)
		}
		p.gate = nil
	})
	for _, answered := range answers {
		<-answered
	}
}

// CutAll closes every connection; new ones are accepted.
func (p *Proxy) CutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.close()
	}
}

// Down closes every connection and the listener: until Up, connections are
// refused.
func (p *Proxy) Down() {
	p.change(func() {
		if p.listener != nil {
			p.listener.Close()
		}
		p.listener = nil
	})
	p.CutAll()
}

// Up listens again, on the same port. That fails while another connection has
// the port.
func (p *Proxy) Up() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		return nil
	}
	listener, err := net.Listen("tcp", p.addr)
	if err != nil {
		return err
	}
	p.listener, p.addr = listener, listener.Addr().String()
	p.wait.Go(func() {
		for client, err := listener.Accept(); err == nil; client, err = listener.Accept() {
			p.wait.Go(func() { p.serve(listener, client) })
		}
	})
	return nil
}

// Close ends every connection and returns when no rule is running.
func (p *Proxy) Close() {
	close(p.done)
	p.Down()
	p.wait.Wait()
}

func (p *Proxy) serve(via net.Listener, client net.Conn) {
	defer client.Close()
	p.mu.Lock()
	allow := p.connect
	p.mu.Unlock()
	if allow != nil && !allow() {
		return
	}
	p.mu.Lock()
	network, backend := p.network, p.backend
	p.mu.Unlock()
	server, err := net.Dial(network, backend)
	if err != nil {
		return
	}
	c := &Conn{client: client, server: server}
	defer c.close()
	down := false
	p.change(func() {
		p.conns[c] = struct{}{}
		down = p.listener != via
	})
	if !down {
		var both sync.WaitGroup
		both.Go(func() { p.pump(c, client, server, false) })
		both.Go(func() { p.pump(c, server, client, true) })
		both.Wait()
	}
	p.change(func() { delete(p.conns, c) })
}

// parcel is a message that is due at a time, or the end of what a side sends.
type parcel struct {
	due  time.Time
	data []byte
	fate Fate
	end  bool
}

// pump passes on one direction. It reads on while parcels wait until they are
// due: a delay does not limit the bandwidth.
func (p *Proxy) pump(c *Conn, from, to net.Conn, answer bool) {
	parcels := make(chan parcel, 256)
	var delivery sync.WaitGroup
	delivery.Go(func() { p.deliver(c, to, parcels) })
	defer delivery.Wait()
	defer close(parcels)
	if answer {
		defer p.change(func() {
			c.silent = true
			c.respond()
		})
	}
	for next, first := (parcel{}), true; !next.end; first = false {
		data, err := p.read(from, first, answer)
		if answer {
			p.change(c.respond)
		}
		if len(data) > 0 {
			m := &Message{Conn: c, Answer: answer, Data: data}
			p.decide(m)
			if due := time.Now().Add(m.Delay); due.After(next.due) {
				next.due = due
			}
			if next.data, next.fate = m.Data, m.Fate; next.fate != Drop {
				parcels <- next
			} else if !answer {
				p.change(c.respond) // nothing will respond to it
			}
			if next.fate == Cut || next.fate == Reset {
				return // the rule sees nothing more of this direction
			}
		}
		if next.end = err != nil; next.end {
			parcels <- next
		}
	}
}

func (p *Proxy) read(from net.Conn, first, answer bool) ([]byte, error) {
	if p.split != nil && !answer {
		return p.split(from, first)
	}
	data := make([]byte, 64<<10)
	n, err := from.Read(data)
	return data[:n], err
}

// decide holds a message and asks the rule.
func (p *Proxy) decide(m *Message) {
	p.mu.Lock()
	rule, gate := p.rule, p.gate
	hold := gate != nil && !m.Answer
	m.Conn.held = m.Conn.held || hold
	p.mu.Unlock()
	if hold {
		select {
		case <-gate:
		case <-p.done:
		}
	}
	if rule != nil {
		rule(m)
	}
}

// deliver writes parcels to one side.
func (p *Proxy) deliver(c *Conn, to net.Conn, parcels <-chan parcel) {
	for next := range parcels {
		time.Sleep(time.Until(next.due))
		switch {
		case next.end:
			var answered chan struct{}
			if p.change(func() { answered = c.answered }); answered != nil && to == c.server {
				<-answered
			}
			if half, ok := to.(interface{ CloseWrite() error }); !ok || half.CloseWrite() != nil {
				c.close()
			}
		case next.fate == Reset:
			for _, side := range []net.Conn{c.client, c.server} {
				if tcp, ok := side.(*net.TCPConn); ok {
					tcp.SetLinger(0)
				}
			}
			c.close()
		case next.fate == Cut:
			c.close()
		default:
			if _, err := to.Write(next.data); err != nil {
				c.close()
			}
		}
	}
}

// respond ends the wait for a response, if any.
func (c *Conn) respond() {
	if c.answered != nil {
		close(c.answered)
		c.answered = nil
	}
}

func (c *Conn) close() {
	c.client.Close()
	c.server.Close()
}
