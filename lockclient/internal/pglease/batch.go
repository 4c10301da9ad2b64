package pglease

import (
	"context"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// operation is one request of one caller.
type operation[Q, A any] struct {
	ctx      context.Context
	resource string
	question Q
	state    atomic.Int32  // unsent, sent, or left by its caller
	answered chan struct{} // closed when the response is there
	answer   A
	err      error
}

const unsent, sent, left = 0, 1, 2

// over reports whether the operation has its response.
func (o *operation[Q, A]) over() bool {
	select {
	case <-o.answered:
		return true
	default:
		return false
	}
}

// take marks the operation as sent; false if it is over, or its caller has left: what is
// granted then may have been released before.
func (o *operation[Q, A]) take() bool {
	return !o.over() && (o.state.CompareAndSwap(unsent, sent) || o.state.Load() == sent)
}

// done completes an operation; the first response counts. Whoever sends it calls it.
func (o *operation[Q, A]) done(a A, err error) {
	if !o.over() {
		o.answer, o.err = a, err
		close(o.answered)
	}
}

// batcher sends operations of one kind. One that comes while none is in flight is sent at
// once; those that come before its end form the next statement.
//
// The callers that are answered together mostly ask again together. Sent by its caller, the
// first of them would be a statement of its own, as half of all statements were with 16
// callers. So while several ask, another goroutine sends, and lets those run first that can
// run now: a third fewer statements, and nobody is waited for. A caller that asks alone
// does without that goroutine, and without a timer.
type batcher[Q, A any] struct {
	// send carries out operations of different resources, ordered by resource, and completes
	// each of them, possibly after it has returned. It sends only those that it can take.
	send    func(ctx context.Context, ops []*operation[Q, A])
	flights sync.WaitGroup

	mu      sync.Mutex
	waiting []*operation[Q, A]
	turn    int         // counts the statements
	busy    bool        // a statement is in flight that is not slow yet
	slow    *time.Timer // ends the turn; nil while nothing waits for that
	several int         // above 0 if one of the last statements had several operations
	closed  bool
}

// slowAfter is how long a statement is waited for: its row may be locked, or the network
// stuck.
const slowAfter = 25 * time.Millisecond

// maxBatch is the most operations in one statement.
const maxBatch = 200

// alone is after how many statements of one operation a caller is taken to be alone.
const alone = 8

// do carries out one operation. After the end of ctx it waits for twice the grace, since
// a statement goes on for one. The error of what was not sent proves that nothing was
// written.
func (b *batcher[Q, A]) do(ctx context.Context, resource string, q Q, grace time.Duration) (none A, err error) {
	o := &operation[Q, A]{ctx: ctx, resource: resource, question: q, answered: make(chan struct{})}
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return none, Harmless(errClosed)
	}
	b.waiting = append(b.waiting, o)
	var fly func()
	switch {
	case b.busy:
		b.arm()
	case b.several > 0:
		go b.next()()
	default:
		fly = b.next()
	}
	b.mu.Unlock()
	if fly != nil {
		fly()
	}
	select {
	case <-o.answered:
		return o.answer, o.err
	case <-ctx.Done():
	}
	if o.state.CompareAndSwap(unsent, left) {
		return none, Harmless(context.Cause(ctx))
	}
	select {
	case <-o.answered:
		return o.answer, o.err
	case <-time.After(2 * grace):
		o.state.Store(left)
		return none, context.Cause(ctx)
	}
}

// next begins a turn and returns the function that sends what waits: what waits now, or,
// while several callers ask, what waits when it runs. b.mu is held, here and in the next two.
func (b *batcher[Q, A]) next() (fly func()) {
	var ops []*operation[Q, A]
	b.busy = true
	b.turn++
	if b.several == 0 {
		ops = b.take()
	}
	b.flights.Add(1)
	turn := b.turn
	return func() {
		defer b.flights.Done()
		if ops == nil {
			runtime.Gosched()
			b.mu.Lock()
			ops = b.take()
			b.mu.Unlock()
		}
		if len(ops) > 0 { // else a later turn has taken them
			ctx := ops[0].ctx
			if len(ops) > 1 { // it ends with none of them, and has values for the hooks of a pool
				ctx = context.WithoutCancel(ctx)
			}
			b.send(ctx, ops)
		}
		b.end(turn)
	}
}

// arm has the turn end when its statement is slow.
func (b *batcher[Q, A]) arm() {
	if turn := b.turn; b.slow == nil {
		b.slow = time.AfterFunc(slowAfter, func() { b.end(turn) })
	}
}

// take takes the operations of a statement: for each resource what came first.
func (b *batcher[Q, A]) take() (ops []*operation[Q, A]) {
	var rest []*operation[Q, A]
	seen := make(map[string]bool, len(b.waiting))
	for _, o := range b.waiting {
		if seen[o.resource] || len(ops) == maxBatch {
			rest = append(rest, o)
		} else {
			seen[o.resource] = true
			ops = append(ops, o)
		}
	}
	if b.waiting = rest; len(rest) > 0 {
		b.arm()
	}
	if b.several = max(0, b.several-1); len(ops) > 1 {
		b.several = alone
	}
	slices.SortFunc(ops, func(a, b *operation[Q, A]) int { return strings.Compare(a.resource, b.resource) })
	return ops
}

// end ends the turn of a statement that is done or slow, and sends what waits.
func (b *batcher[Q, A]) end(turn int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if turn != b.turn || !b.busy {
		return
	}
	b.busy = false
	if b.slow != nil {
		b.slow.Stop()
		b.slow = nil
	}
	if len(b.waiting) > 0 {
		go b.next()()
	}
}

// each sends operations one by one and concurrently: they could not be carried
// out together, because somebody has a lock on one of their rows.
func (b *batcher[Q, A]) each(ops []*operation[Q, A]) {
	for _, o := range ops {
		b.flights.Go(func() { b.send(o.ctx, []*operation[Q, A]{o}) })
	}
}

// close refuses new operations and waits for those already accepted. It ends no
// statement, which would leave outcomes unknown: each has its own timeout.
func (b *batcher[Q, A]) close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.flights.Wait()
}

// taken returns the operations that are to be sent.
func taken[Q, A any](ops []*operation[Q, A]) []*operation[Q, A] {
	return slices.DeleteFunc(slices.Clone(ops), func(o *operation[Q, A]) bool { return !o.take() })
}

// fail completes the operations that have no response yet.
func fail[Q, A any](ops []*operation[Q, A], err error) {
	var none A
	for _, o := range ops {
		o.done(none, err)
	}
}
