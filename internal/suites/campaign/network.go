package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"syscall"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
)

// network is the proxies between the processes.
type network struct {
	server *toxiproxy.ApiServer // never listens; the proxies want its settings
	host   string
	links  []*toxiproxy.Proxy
}

// newNetwork uses a loopback address of its own. A cut proxy gives up its port
// for a while, and on a shared address another connection may take the port
// meanwhile, and keep it for as long as it lasts.
func newNetwork() *network {
	return &network{
		server: toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop()),
		host:   fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254)),
	}
}

// link starts a proxy and returns the address at which it listens.
func (n *network) link(name, upstream string) (*toxiproxy.Proxy, string, error) {
	p := toxiproxy.NewProxy(n.server, name, net.JoinHostPort(n.host, "0"), upstream)
	if err := p.Start(); err != nil {
		return nil, "", fmt.Errorf("proxy %s: %w", name, err)
	}
	n.links = append(n.links, p)
	return p, p.Listen, nil
}

// move points a link at another upstream, for a server that was started again
// on another port. Connections through it are cut.
func move(p *toxiproxy.Proxy, upstream string) error {
	return patiently(func() error {
		return p.Update(&toxiproxy.Proxy{Listen: p.Listen, Upstream: upstream, Enabled: true})
	})
}

// patiently retries what fails because the proxy's port, which must stay the
// same, went to another connection while it was free.
func patiently(listen func() error) error {
	var err error
	for range 600 {
		err = listen()
		if errors.Is(err, toxiproxy.ErrProxyAlreadyStarted) {
			return nil // it was moved while it was cut
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
	return err
}

// faults lists what the network does to a link for a while.
var faults = []struct{ name, toxic string }{
	{"cut", ""},
	{"delay", `{"name":"t","type":"latency","stream":"upstream","attributes":{"latency":60,"jitter":50}}`},
	{"slow answers", `{"name":"t","type":"latency","stream":"downstream","toxicity":0.5,"attributes":{"latency":250,"jitter":200}}`},
	{"lost requests", `{"name":"t","type":"timeout","stream":"upstream","toxicity":0.5,"attributes":{"timeout":150}}`},
	{"lost responses", `{"name":"t","type":"timeout","stream":"downstream","toxicity":0.5,"attributes":{"timeout":150}}`},
	{"reset", `{"name":"t","type":"reset_peer","stream":"downstream","toxicity":0.5,"attributes":{"timeout":5}}`},
}

// disturb injects one fault into one link and removes it again.
func (n *network) disturb(rng *rand.Rand, done <-chan struct{}, note func(string, ...any)) error {
	link, fault := n.links[rng.IntN(len(n.links))], faults[rng.IntN(len(faults))]
	length := time.Duration(100+rng.IntN(400)) * time.Millisecond
	note("network", "link", link.Name, "fault", fault.name, "for", length.String())
	if fault.toxic == "" {
		link.Stop()
		sleepUnless(done, length)
		return patiently(link.Start)
	}
	if _, err := link.Toxics.AddToxicJson(strings.NewReader(fault.toxic)); err != nil {
		return err
	}
	sleepUnless(done, length)
	link.Toxics.ResetToxics(context.Background())
	return nil
}

func (n *network) close() {
	for _, p := range n.links {
		p.Stop()
	}
}
