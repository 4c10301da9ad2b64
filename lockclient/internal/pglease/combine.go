package pglease

import (
	"context"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// slowAfter is how long a statement is in flight before later operations
	// stop waiting for it: its row is locked, or the network is stuck.
	slowAfter = 25 * time.Millisecond
	// maxCombined is the most operations in one statement.
	maxCombined = 200
)

// combiner sends the operations of one kind: all that arrived while a statement
// was in flight form the next statement. While none is in flight, an operation
// is sent at once, by its caller. Otherwise it waits: for a statement in flight
// until that is done or slow; with before, for one of the other kind as well; and
// for callers that just got their response, milliseconds at most.
type combiner[Q, A any] struct {
	// send carries out operations of different resources and completes each by
	// [operation.done], possibly after it has returned.
	send func(ctx context.Context, ops []*operation[Q, A])
	// before is called before the waiting operations are taken: others of the
	// same callers get their response, and their next ones join.
	before   func()
	resuming *resuming

	flights sync.WaitGroup

	mu      sync.Mutex
	waiting []*operation[Q, A]
	busy    bool        // a statement is in flight that is not slow yet
	turn    int         // counts them
	since   time.Time   // when the statement was sent; zero if none is in flight
	slow    *time.Timer // ends the turn; nil while nothing waits for that
	last    int         // how many operations the last statement had
	settles int         // how many calls of settle wait
	ended   sync.Cond
	closed  bool
}

func newCombiner[Q, A any](r *resuming, before func(), send func(context.Context, []*operation[Q, A])) *combiner[Q, A] {
	c := &combiner[Q, A]{send: send, before: before, resuming: r}
	c.ended.L = &c.mu
	return c
}

// resuming counts callers that have their response and do not run yet.
type resuming struct {
	mu   sync.Mutex
	n    int
	none chan struct{} // closed when n is 0; nil if nobody waits for that
}

func (r *resuming) add(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n += n
	if r.n == 0 && r.none != nil {
		close(r.none)
		r.none = nil
	}
}

func (r *resuming) any() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.n > 0
}

// wait waits until all of them run, for a millisecond at most, and says whether
// it waited.
func (r *resuming) wait() bool {
	r.mu.Lock()
	if r.n == 0 {
		r.mu.Unlock()
		return false
	}
	if r.none == nil {
		r.none = make(chan struct{})
	}
	none := r.none
	r.mu.Unlock()
	timer := time.NewTimer(time.Millisecond)
	defer timer.Stop()
	select {
	case <-none:
	case <-timer.C:
	}
	return true
}

// operation is one request of one caller.
type operation[Q, A any] struct {
	ctx      context.Context
	resource string
	question Q
	answered chan struct{}
	resuming *resuming

	mu     sync.Mutex
	sent   bool
	left   bool // nobody waits for the response
	given  bool // the channel is closed
	answer A
	err    error
}

// done completes an operation; the first response counts.
func (o *operation[Q, A]) done(a A, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.given {
		return
	}
	if !o.left {
		o.resuming.add(1)
	}
	o.given, o.answer, o.err = true, a, err
	close(o.answered)
}

func (o *operation[Q, A]) hasAnswer() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.given
}

// take marks the operation as about to be sent; false if its caller has gone or
// has its response. It must not be sent then: what was granted may have been
// released since.
func (o *operation[Q, A]) take() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sent = o.sent || !o.left && !o.given
	return !o.left && !o.given
}

// leave records that nobody waits any more, if the operation has no response and
// was sent (ifSent) or was not (!ifSent).
func (o *operation[Q, A]) leave(ifSent bool) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.left = o.left || !o.given && o.sent == ifSent
	return o.left
}

// taken returns the operations whose callers still wait.
func taken[Q, A any](ops []*operation[Q, A]) []*operation[Q, A] {
	return slices.DeleteFunc(slices.Clone(ops), func(o *operation[Q, A]) bool { return !o.take() })
}

// unanswered returns the operations that have no response yet.
func unanswered[Q, A any](ops []*operation[Q, A]) []*operation[Q, A] {
	return slices.DeleteFunc(slices.Clone(ops), func(o *operation[Q, A]) bool { return o.hasAnswer() })
}

// fail completes the operations that have no response yet.
func fail[Q, A any](ops []*operation[Q, A], err error) {
	var none A
	for _, o := range ops {
		o.done(none, err)
	}
}

// each sends operations one by one and concurrently: they could not be carried
// out together, because somebody has a lock on one of their rows.
func (c *combiner[Q, A]) each(ops []*operation[Q, A]) {
	for _, o := range ops {
		c.flights.Go(func() { c.send(o.ctx, []*operation[Q, A]{o}) })
	}
}

// do carries out one operation. After the end of ctx it waits for grace for a
// response that is in flight. The error of an operation that was not sent proves
// that nothing was written.
func (c *combiner[Q, A]) do(ctx context.Context, resource string, q Q, grace time.Duration) (none A, err error) {
	o := &operation[Q, A]{ctx: ctx, resource: resource, question: q, answered: make(chan struct{}), resuming: c.resuming}
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return none, Harmless(errClosed)
	}
	c.waiting = append(c.waiting, o)
	turn, mine := c.begin()
	c.arm()
	c.mu.Unlock()
	if mine { // nearly always the only one
		if ops := c.next(); len(ops) == 1 && ops[0] == o {
			c.carry(turn, ctx, ops)
			c.flights.Done()
		} else {
			go func() { defer c.flights.Done(); c.carry(turn, values(ops), ops) }()
		}
	}
	select {
	case <-o.answered:
	case <-ctx.Done():
		if o.leave(false) {
			return none, Harmless(context.Cause(ctx))
		}
		timer := time.NewTimer(2 * grace) // the statement itself goes on for one grace
		defer timer.Stop()
		select {
		case <-o.answered:
		case <-timer.C:
			if o.leave(true) {
				return none, context.Cause(ctx)
			}
		}
	}
	c.resuming.add(-1)
	return o.answer, o.err
}

// values is the context of a statement for several callers: it ends with none of
// them and has the values of the first one's, for the hooks of a pool.
func values[Q, A any](ops []*operation[Q, A]) context.Context {
	if len(ops) == 0 {
		return context.Background()
	}
	return context.WithoutCancel(ops[0].ctx)
}

// begin takes the turn to send what waits, if nobody has it; c.mu is held.
func (c *combiner[Q, A]) begin() (turn int, ok bool) {
	if c.busy || len(c.waiting) == 0 {
		return 0, false
	}
	c.busy = true
	c.flights.Add(1)
	return c.turn, true
}

// carry sends operations, and ends the turn when that is done or slow.
func (c *combiner[Q, A]) carry(turn int, ctx context.Context, ops []*operation[Q, A]) {
	c.mu.Lock()
	if turn == c.turn {
		c.since = time.Now()
		c.arm()
	}
	c.mu.Unlock()
	c.send(ctx, ops)
	c.end(turn)
}

// arm limits how long the statement in flight is waited for, once something waits
// for it; c.mu is held. A lone caller needs no timer, which would cost it more than
// the rest of the combiner.
func (c *combiner[Q, A]) arm() {
	if len(c.waiting) == 0 && c.settles == 0 || c.since.IsZero() || c.slow != nil {
		return
	}
	turn := c.turn
	c.slow = time.AfterFunc(max(0, slowAfter-time.Since(c.since)), func() { c.end(turn) })
}

// end ends a turn, and begins the next one if something waits.
func (c *combiner[Q, A]) end(turn int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if turn != c.turn {
		return
	}
	c.turn++
	c.busy, c.since = false, time.Time{}
	if c.slow != nil {
		c.slow.Stop()
		c.slow = nil
	}
	c.ended.Broadcast()
	if turn, ok := c.begin(); ok {
		go func() {
			defer c.flights.Done()
			ops := c.next()
			ctx := values(ops)
			if len(ops) == 1 {
				ctx = ops[0].ctx
			}
			c.carry(turn, ctx, ops)
		}()
	}
}

// settle waits for the statement in flight and the next one.
func (c *combiner[Q, A]) settle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settles++
	defer func() { c.settles-- }()
	c.arm()
	for last := c.turn + 2; c.busy && c.turn < last; {
		c.ended.Wait()
	}
}

// gather waits for callers that have their response, until they run again and have
// had the time to ask again: those that finish together ask together, and the first
// of them would be sent by itself. It waits for nobody else, and a lone caller does not
// even yield the processor, which would wake another thread.
func (c *combiner[Q, A]) gather() {
	c.mu.Lock()
	alone := c.last <= 1 && len(c.waiting) <= 1
	c.mu.Unlock()
	if alone && !c.resuming.any() {
		return
	}
	for round, before := 0, -1; round < 4; round++ {
		again := c.resuming.wait()
		runtime.Gosched()
		c.mu.Lock()
		n := len(c.waiting)
		c.mu.Unlock()
		if n == before && !again {
			return
		}
		before = n
	}
}

// next takes the operations of the next statement: for each resource the one
// that came first, in the order of the resources.
func (c *combiner[Q, A]) next() (ops []*operation[Q, A]) {
	c.gather()
	if c.before != nil {
		c.before()
		c.gather()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.waiting) == 1 {
		ops, c.waiting = c.waiting, nil
		c.last = 1
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
	c.waiting, c.last = rest, len(ops)
	slices.SortFunc(ops, func(a, b *operation[Q, A]) int { return strings.Compare(a.resource, b.resource) })
	return ops
}

// close refuses new operations and waits for those already accepted. It does not
// end a statement, since the outcome of its operations would not be known: each has
// its own timeout.
func (c *combiner[Q, A]) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.flights.Wait()
}
