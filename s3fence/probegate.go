package s3fence

import (
	"bytes"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// gateWait is how long racing writers wait for each other. It is longer than any
// of them takes to get there, unless the client keeps too few connections.
const gateWait = 2 * time.Second

// gate lets racing writers go on together. Left alone they meet only if the
// machines have nothing else to do: on a busy one versitygw 1.7 kept them apart
// in most rounds by serving one after the other.
type gate struct {
	// open lets everybody through: some did not come.
	open *atomic.Bool

	mu      sync.Mutex
	size    int // how many writers there are
	waiting int
	next    chan struct{}
}

func newGate(size int, open *atomic.Bool) *gate {
	return &gate{size: size, open: open, next: make(chan struct{})}
}

// wait returns when as many as there are writers wait, and then begins anew.
func (g *gate) wait() {
	if g.open.Load() {
		return
	}
	g.mu.Lock()
	next := g.next
	g.waiting++
	g.pass()
	g.mu.Unlock()
	timer := time.NewTimer(gateWait)
	defer timer.Stop()
	select {
	case <-next:
	case <-timer.C:
		g.open.Store(true)
	}
}

// leave says that a writer is at its end and does not come any more.
func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.size--
	g.pass()
}

// pass lets those who wait go on if nobody else is to come. g.mu is held.
func (g *gate) pass() {
	if g.waiting < g.size || g.waiting == 0 {
		return
	}
	close(g.next)
	g.waiting, g.next = 0, make(chan struct{})
}

// gated is a body that waits at the gate before its last byte, each time that it
// is read: the SDK reads it for checksums first. What is before it waits in the
// connection's buffer, so that all requests leave at once.
type gated struct {
	*bytes.Reader
	gate *gate
}

func (b *gated) Read(p []byte) (int, error) {
	switch left := b.Len(); {
	case left == 1:
		b.gate.wait()
	case left > 1 && len(p) >= left:
		p = p[:left-1]
	}
	return b.Reader.Read(p)
}

// WriteTo hides that of bytes.Reader, which would not wait.
func (b *gated) WriteTo(w io.Writer) (int64, error) {
	return io.Copy(w, struct{ io.Reader }{b})
}
