package failover_test

import (
	"bytes"
	"context"
	"net"
	"strconv"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/fencepost-go/fencepost/internal/faultproxy"
	"github.com/fencepost-go/fencepost/internal/suites/issuers/servers"
	"github.com/fencepost-go/fencepost/internal/testkit"
)

// link stands between two nodes and can be cut: then it swallows what it
// receives, like a network that drops packets, and no connection ends.
type link struct {
	*faultproxy.Proxy

	mu      sync.Mutex
	healed  chan struct{} // not nil while the link is cut
	cutFrom string
	dialers map[*faultproxy.Conn]string // who made a connection, once it has said so
}

// etcd nodes identify themselves in a header.
var dialerHeader = []byte("X-Server-From: ")

// newLink makes a link to a node.
func newLink(t *testing.T, to string) *link {
	t.Helper()
	p, err := faultproxy.New("tcp", to, nil)
	testkit.Must(t, err)
	t.Cleanup(p.Close)
	k := &link{Proxy: p, dialers: map[*faultproxy.Conn]string{}}
	p.Set(k.pass)
	p.OnConnect(k.open)
	return k
}

// open keeps a connection waiting while the link is cut, and then ends it.
func (k *link) open() bool {
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

func (k *link) pass(m *faultproxy.Message) {
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

// cut cuts the link, or heals it: connections that lost something end.
func (k *link) cut(on bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case on && k.healed == nil:
		k.healed = make(chan struct{})
	case !on && k.healed != nil:
		close(k.healed)
		k.healed = nil
		k.CutAll()
	}
}

// onlyFrom cuts what the node of that name sends and the answers to it; an empty
// name heals the link. The name is the etcd node's own.
func (k *link) onlyFrom(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.cutFrom != "" && name == "" {
		k.CutAll()
	}
	k.cutFrom = name
}

// linkedEtcd is a cluster whose nodes can be cut off from each other.
type linkedEtcd struct {
	*servers.Etcd
	links []*link  // to each node's peer address
	names []string // the nodes' IDs, as they are in their requests
}

func startLinkedEtcd(t *testing.T, n int) *linkedEtcd {
	t.Helper()
	e := &linkedEtcd{}
	e.Etcd = servers.StartEtcdWith(t, n, servers.EtcdOptions{Via: func(peer string) string {
		l := newLink(t, peer)
		e.links = append(e.links, l)
		return l.Addr()
	}})
	for _, addr := range e.Addrs() {
		c := etcd(t, addr)
		status, err := c.Status(t.Context(), addr)
		testkit.Must(t, err)
		e.names = append(e.names, strconv.FormatUint(status.Header.MemberId, 16))
	}
	return e
}

// cut cuts a node off from the others, or heals it. Its clients still reach it.
func (e *linkedEtcd) cut(n int, on bool) {
	for k, l := range e.links {
		switch {
		case k == n:
			l.cut(on)
		case on:
			l.onlyFrom(e.names[n])
		default:
			l.onlyFrom("")
		}
	}
}

// linkedZooKeeper is an ensemble whose nodes can be cut off from each other.
type linkedZooKeeper struct {
	*servers.ZooKeeper
	links map[[2]int]*link // by follower and leader
}

func startLinkedZooKeeper(t *testing.T, n int) *linkedZooKeeper {
	t.Helper()
	z := &linkedZooKeeper{links: map[[2]int]*link{}}
	z.ZooKeeper = servers.StartZooKeeperVia(t, n, func(follower, leader int, addr string) string {
		l := newLink(t, addr)
		z.links[[2]int{follower, leader}] = l
		return l.Addr()
	})
	return z
}

// cut cuts a node off from the others, or heals it. Its clients still reach it.
func (z *linkedZooKeeper) cut(n int, on bool) {
	for between, l := range z.links {
		if between[0] == n || between[1] == n {
			l.cut(on)
		}
	}
}

// masterOf returns the number of the node that at least two Sentinels take for
// the master and that says so itself; -1 if there is none.
func masterOf(ctx context.Context, r *servers.RedisSentinel) int {
	votes := map[string]int{}
	for _, addr := range r.Addrs() {
		c := redis.NewSentinelClient(&redis.Options{Addr: addr, MaxRetries: -1})
		if at, err := c.GetMasterAddrByName(ctx, servers.SentinelName).Result(); err == nil && len(at) == 2 {
			votes[net.JoinHostPort(at[0], at[1])]++
		}
		c.Close()
	}
	for n, p := range r.Nodes {
		if votes[p.Addr] > 1 {
			c := redis.NewClient(&redis.Options{Addr: p.Addr, MaxRetries: -1, DialerRetries: 1})
			role, err := c.Do(ctx, "ROLE").Slice()
			c.Close()
			if err == nil && len(role) > 0 && role[0] == "master" {
				return n
			}
		}
	}
	return -1
}
