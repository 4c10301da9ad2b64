package servers

import (
	"bytes"
	"sync"

	"github.com/fencepost-go/fencepost/internal/faultproxy"
)

// Link stands between two nodes and can be cut: then it swallows what it
// receives, like a network that drops packets, and no connection ends.
type Link struct {
	*faultproxy.Proxy

	mu      sync.Mutex
	healed  chan struct{} // not nil while the link is cut
	cutFrom string
	dialers map[*faultproxy.Conn]string // who made a connection, once it has said so
}

// etcd nodes identify themselves in a header.
var dialerHeader = []byte("X-Server-From: ")

// NewLink makes a link to a node.
func NewLink(t TB, to string) *Link {
	t.Helper()
	p, err := faultproxy.New("tcp", to, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	k := &Link{Proxy: p, dialers: map[*faultproxy.Conn]string{}}
	p.Set(k.pass)
	p.OnConnect(k.open)
	return k
}

// open keeps a connection waiting while the link is cut, and then ends it.
func (k *Link) open() bool {
	k.mu.Lock()
	healed := k.healed
	k.mu.Unlock()
	if healed == nil {
		return true
	}
	select {
	case <-healed:
	case <-k.Done():
	}
	return false
}

func (k *Link) pass(m *faultproxy.Message) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, after, ok := bytes.Cut(m.Data, dialerHeader); ok && !m.Answer {
		name, _, _ := bytes.Cut(after, []byte("\r"))
		k.dialers[m.Conn] = string(name)
	}
	if k.healed != nil || k.cutFrom != "" && k.cutFrom == k.dialers[m.Conn] {
		m.Fate = faultproxy.Drop
	}
}

// Cut cuts the link, or heals it: connections that lost something end.
func (k *Link) Cut(cut bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case cut && k.healed == nil:
		k.healed = make(chan struct{})
	case !cut && k.healed != nil:
		close(k.healed)
		k.healed = nil
		k.CutAll()
	}
}

// CutFrom cuts what the node of that name sends and the answers to it; an empty
// name heals the link. The name is the etcd node's own, see [Etcd.Cut].
func (k *Link) CutFrom(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.cutFrom != "" && name == "" {
		k.CutAll()
	}
	k.cutFrom = name
}
