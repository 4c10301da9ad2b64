// Package inflight counts what a Close waits for.
package inflight

import (
	"context"
	"sync"
)

// Count counts work in flight. A sync.WaitGroup would not do: work may begin while
// Drain waits, of which it would panic. The zero value is ready. It is safe for
// concurrent use.
type Count struct {
	mu   sync.Mutex
	n    int
	idle chan struct{} // closed when nothing is in flight; nil unless a Drain waits
	done bool          // nothing begins any more
}

// Begin counts work until End; false if Drain no longer waits for it.
func (c *Count) Begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.done {
		c.n++
	}
	return !c.done
}

// End ends what Begin counted.
func (c *Count) End() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n--; c.n == 0 && c.idle != nil {
		c.done = true // at this moment, or new work could keep Drain waiting
		close(c.idle)
		c.idle = nil
	}
}

// Go runs f in a goroutine; false if Drain no longer waits for it.
func (c *Count) Go(f func()) bool {
	if !c.Begin() {
		return false
	}
	go func() {
		defer c.End()
		f()
	}()
	return true
}

// Drain waits until nothing is in flight, and from then on nothing begins. If ctx
// ends first, nothing begins either, and the error is the cause of ctx.
func (c *Count) Drain(ctx context.Context) (err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n > 0 {
		if c.idle == nil {
			c.idle = make(chan struct{})
		}
		idle := c.idle
		c.mu.Unlock()
		select {
		case <-idle:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		c.mu.Lock()
	}
	c.done = true
	return err
}
