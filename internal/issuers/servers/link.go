package servers

import (
	"net"
	"sync"
)

// Link is a TCP proxy between two nodes that can be cut: then it swallows what it
// is sent, as a network does that drops packets, and no connection ends.
type Link struct {
	listener net.Listener
	to       string

	mu    sync.Mutex
	cut   bool
	conns map[net.Conn]bool
}

// NewLink makes a link to a node.
func NewLink(t TB, to string) *Link {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	k := &Link{listener: l, to: to, conns: map[net.Conn]bool{}}
	go k.serve()
	t.Cleanup(func() { l.Close(); k.Cut(false) })
	return k
}

// Addr is what a node connects to in place of the other.
func (k *Link) Addr() string { return k.listener.Addr().String() }

func (k *Link) serve() {
	for {
		from, err := k.listener.Accept()
		if err != nil {
			return
		}
		k.mu.Lock()
		k.conns[from] = true
		cut := k.cut
		k.mu.Unlock()
		if cut {
			continue // until it is healed
		}
		to, err := net.Dial("tcp", k.to)
		if err != nil {
			k.end(from)
			continue
		}
		k.mu.Lock()
		k.conns[to] = true
		k.mu.Unlock()
		go k.pump(from, to)
		go k.pump(to, from)
	}
}

func (k *Link) pump(from, to net.Conn) {
	defer k.end(from)
	defer k.end(to)
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		k.mu.Lock()
		cut := k.cut
		k.mu.Unlock()
		if cut {
			continue
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

func (k *Link) end(c net.Conn) {
	c.Close()
	k.mu.Lock()
	delete(k.conns, c)
	k.mu.Unlock()
}

// Cut cuts the link, or heals it: connections that lost something end.
func (k *Link) Cut(cut bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.cut && !cut {
		for c := range k.conns {
			c.Close()
		}
	}
	k.cut = cut
}
