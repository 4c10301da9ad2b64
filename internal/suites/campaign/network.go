package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"time"

	"github.com/fencepost-go/fencepost/internal/faultproxy"
)

// network is the proxies between the processes.
type network struct {
	host  string
	links []*link
	ended sync.Once
}

// link is one of them.
type link struct {
	*faultproxy.Proxy
	name string
}

// newNetwork uses a loopback address of its own. A proxy that is down gives up its
// port, and on a shared address another connection may take the port in
// the meantime, and keep it for as long as it lasts.
func newNetwork() *network {
	return &network{host: fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))}
}

// link starts a proxy.
func (n *network) link(name, upstream string) (*link, error) {
	p, err := faultproxy.New("tcp", upstream, &faultproxy.Options{Host: n.host})
	if err != nil {
		return nil, fmt.Errorf("proxy %s: %w", name, err)
	}
	l := &link{p, name}
	n.links = append(n.links, l)
	return l, nil
}

// move points a link at another upstream, for a server that was started again
// on another port. Connections through it are cut.
func (l *link) move(upstream string) {
	l.Backend("tcp", upstream)
	l.CutAll()
}

// up listens again. It is patient with another connection that has taken the port.
func (l *link) up() (err error) {
	for range 600 {
		if err = l.Up(); !errors.Is(err, syscall.EADDRINUSE) {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
	return err
}

// faults lists what the network does to a link for a while: to half of what passes
// in one direction or, without a direction, to the link.
var faults = []struct {
	name   string
	answer bool
	fate   faultproxy.Fate
	delay  time.Duration // at most
}{
	{name: "cut"},
	{name: "delay", delay: 110 * time.Millisecond},
	{name: "slow responses", answer: true, delay: 450 * time.Millisecond},
	{name: "lost requests", fate: faultproxy.Cut, delay: 300 * time.Millisecond},
	{name: "lost responses", answer: true, fate: faultproxy.Cut, delay: 300 * time.Millisecond},
	{name: "reset", answer: true, fate: faultproxy.Reset, delay: 10 * time.Millisecond},
}

// disturb injects one fault into one link and removes it again.
func (n *network) disturb(rng *rand.Rand, done <-chan struct{}, note func(string, ...any)) error {
	l, f := n.links[rng.IntN(len(n.links))], faults[rng.IntN(len(faults))]
	length := time.Duration(100+rng.IntN(400)) * time.Millisecond
	note("network", "link", l.name, "fault", f.name, "for", length.String())
	if f.name == "cut" {
		l.Down()
		sleepUnless(done, length)
		return l.up()
	}
	l.Set(func(m *faultproxy.Message) {
		if m.Answer == f.answer && rand.IntN(2) == 0 {
			m.Fate, m.Delay = f.fate, rand.N(f.delay)
		}
	})
	sleepUnless(done, length)
	l.Set(nil)
	return nil
}

// close ends all connections, once.
func (n *network) close() {
	n.ended.Do(func() {
		var all sync.WaitGroup
		for _, l := range n.links {
			all.Go(l.Close)
		}
		all.Wait()
	})
}
