package drivertest

import (
	"testing"

	"github.com/fencepost-go/fencepost/internal/faultproxy"
)

// Proxy is a TCP proxy in front of an engine, and a [Network]. What a client
// sent before it closed its connection still arrives, as from a busy router.
type Proxy struct{ proxy *faultproxy.Proxy }

// NewProxy listens on loopback for the test's duration and forwards connections
// to backend; network and backend are as for net.Dial.
func NewProxy(t testing.TB, network, backend string) *Proxy {
	t.Helper()
	p, err := faultproxy.New(network, backend, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return &Proxy{p}
}

// Addr is where clients connect to.
func (p *Proxy) Addr() string { return p.proxy.Addr() }

// Hold holds requests from now on. Until they are delivered it refuses new
// connections: one might carry the cancellation of what is held.
func (p *Proxy) Hold() {
	p.proxy.OnConnect(func() bool { return false })
	p.proxy.Hold()
}

// Holding reports whether a request is being held.
func (p *Proxy) Holding() bool { return p.proxy.Held() > 0 }

// Deliver sends what was held and waits until the engine has responded.
func (p *Proxy) Deliver() {
	p.proxy.Release()
	p.proxy.OnConnect(nil)
}
