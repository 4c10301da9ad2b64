package pglease

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// slowAfter is how long a statement is under way before the operations that
	// came after it no longer wait for it: its row is locked, or the network
	// stands still.
	slowAfter = 25 * time.Millisecond
	// maxCombined is the most operations in one statement.
	maxCombined = 200
)

// combiner sends the operations of one kind, all that have come while a
// statement was under way as the next statement. While none is, an operation is
// sent at once; nothing waits for a timer.
type combiner[Q, A any] struct {
	// send carries out operations of different resources and answers each by
	// [operation.done], also after it has returned.
	send func(ops []*operation[Q, A])

	mu      sync.Mutex
	waiting []*operation[Q, A]
	busy    bool // a statement is under way that is not slow yet
	closed  bool
	flights sync.WaitGroup
}

// operation is one request of one caller.
type operation[Q, A any] struct {
	ctx      context.Context
	resource string
	question Q
	answered chan struct{}

	mu      sync.Mutex
	sent    bool
	left    bool // nobody waits for the answer
	given   bool // answered is closed
	onLeave func()
	answer  A
	err     error
}

// done answers an operation.
func (o *operation[Q, A]) done(a A, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.given {
		o.given, o.answer, o.err = true, a, err
		close(o.answered)
	}
}

func (o *operation[Q, A]) hasAnswer() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.given
}

// attach has onLeave called when the caller goes without an answer.
func (o *operation[Q, A]) attach(onLeave func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.left {
		onLeave()
		return
	}
	o.onLeave = onLeave
}

// take says that the operation is about to be sent; false if its caller has
// gone or has his answer, so that it must not be: what was granted may have been
// released since.
func (o *operation[Q, A]) take() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.left || o.given {
		return false
	}
	o.sent = true
	return true
}

// leave says that nobody waits any more, if it was sent or was not.
func (o *operation[Q, A]) leave(ifSent bool) (left bool) {
	o.mu.Lock()
	if o.sent != ifSent {
		o.mu.Unlock()
		return false
	}
	o.left = true
	onLeave := o.onLeave
	o.mu.Unlock()
	if onLeave != nil {
		onLeave()
	}
	return true
}

// together returns a context that ends when every caller has gone.
func together[Q, A any](ops []*operation[Q, A]) (context.Context, context.CancelFunc) {
	if len(ops) == 1 {
		return ops[0].ctx, func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var left atomic.Int64
	for _, o := range ops {
		o.attach(func() {
			if left.Add(1) == int64(len(ops)) {
				cancel()
			}
		})
	}
	return ctx, cancel
}

// taken returns the operations whose callers still wait.
func taken[Q, A any](ops []*operation[Q, A]) []*operation[Q, A] {
	return slices.DeleteFunc(slices.Clone(ops), func(o *operation[Q, A]) bool { return !o.take() })
}

// fail answers what has no answer yet.
func fail[Q, A any](ops []*operation[Q, A], err error) {
	var none A
	for _, o := range ops {
		o.done(none, err)
	}
}

// each sends operations one by one and beside each other: together they could
// not be carried out, because somebody has a lock on one of their rows.
func (c *combiner[Q, A]) each(ops []*operation[Q, A]) {
	for _, o := range ops {
		c.flights.Go(func() { c.send([]*operation[Q, A]{o}) })
	}
}

// do carries out one operation. It waits for grace after the end of ctx for an
// answer that is under way. An error of an operation that was not sent proves
// that nothing was written.
func (c *combiner[Q, A]) do(ctx context.Context, resource string, q Q, grace time.Duration) (none A, err error) {
	o := &operation[Q, A]{ctx: ctx, resource: resource, question: q, answered: make(chan struct{})}
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return none, Harmless(errClosed)
	}
	c.waiting = append(c.waiting, o)
	c.start()
	c.mu.Unlock()
	select {
	case <-o.answered:
		return o.answer, o.err
	case <-ctx.Done():
	}
	if o.leave(false) {
		return none, Harmless(context.Cause(ctx))
	}
	timer := time.NewTimer(2 * grace) // the statement itself goes on for one
	defer timer.Stop()
	select {
	case <-o.answered:
		return o.answer, o.err
	case <-timer.C:
		o.leave(true)
		return none, context.Cause(ctx)
	}
}

// start sees to it that what waits is sent; c.mu is held.
func (c *combiner[Q, A]) start() {
	if !c.busy && len(c.waiting) > 0 {
		c.busy = true
		c.flights.Go(c.run)
	}
}

// run sends until nothing waits, or its statement is slow.
func (c *combiner[Q, A]) run() {
	for {
		c.yield()
		c.mu.Lock()
		ops := c.next()
		if len(ops) == 0 {
			c.busy = false
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		var mu sync.Mutex
		slow, finished := false, false
		timer := time.AfterFunc(slowAfter, func() {
			mu.Lock()
			defer mu.Unlock()
			if finished {
				return
			}
			slow = true
			c.mu.Lock()
			defer c.mu.Unlock()
			c.busy = false
			if !c.closed {
				c.start()
			}
		})
		c.send(ops)
		timer.Stop()
		mu.Lock()
		finished = true
		mu.Unlock()
		if slow {
			return
		}
	}
}

// yield lets those who are ready to run, and about to ask, do so: callers that
// were answered together ask together again, and the first of them would go
// alone. It waits for nothing; nobody else ready, it returns within a
// microsecond.
func (c *combiner[Q, A]) yield() {
	for round, before := 0, -1; round < 4; round++ {
		runtime.Gosched()
		c.mu.Lock()
		n := len(c.waiting)
		c.mu.Unlock()
		if n == before {
			return
		}
		before = n
	}
}

// next takes the operations of the next statement, of each resource one, in the
// order of their coming; c.mu is held.
func (c *combiner[Q, A]) next() (ops []*operation[Q, A]) {
	if len(c.waiting) == 1 {
		ops, c.waiting = c.waiting, nil
		return ops
	}
	seen := make(map[string]bool, len(c.waiting))
	var rest []*operation[Q, A]
	for _, o := range c.waiting {
		if seen[o.resource] || len(ops) == maxCombined {
			rest = append(rest, o)
			continue
		}
		seen[o.resource] = true
		ops = append(ops, o)
	}
	c.waiting = rest
	return ops
}

// close waits for the statements under way and refuses what comes.
func (c *combiner[Q, A]) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.flights.Wait()
}
