package servers

import (
	"bytes"
	"net"
	"sync"
)

// Link is a TCP proxy between two nodes that can be cut: then it swallows what it
// receives, like a network that drops packets, and no connection ends.
type Link struct {
	listener net.Listener
	to       string

	mu      sync.Mutex
	cut     bool
	cutFrom string
	conns   map[net.Conn]*dialer
}

// dialer names the node that made a connection, once it has said so.
type dialer struct{ name string } // below Link.mu

// etcd nodes identify themselves in a header.
var dialerHeader = []byte("X-Server-From: ")

// NewLink makes a link to a node.
func NewLink(t TB, to string) *Link {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	k := &Link{listener: l, to: to, conns: map[net.Conn]*dialer{}}
	go k.serve()
	t.Cleanup(func() { l.Close(); k.Cut(false) })
	return k
}

// Addr returns the address to connect to instead of the node's.
func (k *Link) Addr() string { return k.listener.Addr().String() }

func (k *Link) serve() {
	for {
		from, err := k.listener.Accept()
		if err != nil {
			return
		}
		d := &dialer{}
		k.mu.Lock()
		k.conns[from] = d
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
		k.conns[to] = d
		k.mu.Unlock()
		go k.pump(from, to, d, true)
		go k.pump(to, from, d, false)
	}
}

func (k *Link) pump(from, to net.Conn, d *dialer, requests bool) {
	defer k.end(from)
	defer k.end(to)
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		k.mu.Lock()
		if _, after, ok := bytes.Cut(buf[:n], dialerHeader); ok && requests {
			name, _, _ := bytes.Cut(after, []byte("\r"))
			d.name = string(name)
		}
		cut := k.cut || k.cutFrom != "" && k.cutFrom == d.name
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
		k.endAll()
	}
	k.cut = cut
}

// CutFrom cuts what the node of that name sends and the answers to it; an empty
// name heals the link. The name is the etcd node's own, see [Etcd.Cut].
func (k *Link) CutFrom(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.cutFrom != "" && name == "" {
		k.endAll()
	}
	k.cutFrom = name
}

func (k *Link) endAll() {
	for c := range k.conns {
		c.Close()
	}
}
