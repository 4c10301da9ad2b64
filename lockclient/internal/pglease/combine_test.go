package pglease

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// carryOut answers each operation with its question.
func carryOut(_ context.Context, ops []*operation[int, int]) {
	for _, o := range taken(ops) {
		o.done(o.question, nil)
	}
}

// inFlight makes it look as if a statement were in flight.
func (c *combiner[Q, A]) inFlight() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy = true
}

// arrived returns when that many operations wait.
func (c *combiner[Q, A]) arrived(n int) {
	for there := -1; there != n; time.Sleep(time.Millisecond) {
		c.mu.Lock()
		there = len(c.waiting)
		c.mu.Unlock()
	}
}

// TestTakenOnce: an operation that was answered, or whose caller has gone, is
// not sent again.
func TestTakenOnce(t *testing.T) {
	op := func() *operation[int, int] {
		return &operation[int, int]{ctx: t.Context(), answered: make(chan struct{}), resuming: new(resuming)}
	}
	waiting, answered, gone := op(), op(), op()
	if n := len(taken([]*operation[int, int]{waiting, answered})); n != 2 {
		t.Errorf("%d of 2 are sent", n)
	}
	answered.done(1, nil)
	answered.done(2, errors.New("later")) // the first answer counts
	gone.leave(false)
	if again := taken([]*operation[int, int]{waiting, answered, gone}); len(again) != 1 || again[0] != waiting {
		t.Errorf("%d of 3 are sent again", len(again))
	}
	if answered.answer != 1 || answered.err != nil {
		t.Errorf("answered %d, %v", answered.answer, answered.err)
	}
}

// TestCombinerUnsent: an operation that was not sent before its caller left is
// known not to be written.
func TestCombinerUnsent(t *testing.T) {
	c := newCombiner(new(resuming), nil, carryOut)
	c.inFlight()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.do(ctx, "r", 2, Grace); !NothingWritten(err) || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	c.end(0)
	if got, err := c.do(t.Context(), "r", 3, Grace); got != 3 || err != nil {
		t.Errorf("got %d, %v", got, err)
	}
	c.close()
	if _, err := c.do(t.Context(), "r", 4, Grace); !errors.Is(err, errClosed) {
		t.Errorf("closed: %v", err)
	}
}

// TestCombined: operations that arrive while a statement is in flight are sent
// together, one per resource, in the order of the resources; an operation that
// arrives while none is in flight is sent alone. A slow statement delays nobody.
func TestCombined(t *testing.T) {
	var mu sync.Mutex
	var sent []string
	gate := make(chan struct{})
	c := newCombiner(new(resuming), nil, func(ctx context.Context, ops []*operation[int, int]) {
		var resources []string
		for _, o := range ops {
			resources = append(resources, o.resource)
		}
		mu.Lock()
		sent = append(sent, strings.Join(resources, " "))
		mu.Unlock()
		if resources[0] == "slow" {
			<-gate
		}
		carryOut(ctx, ops)
	})
	var wg sync.WaitGroup
	ask := func(resource string, n int) {
		wg.Go(func() {
			if got, err := c.do(context.Background(), resource, n, Grace); got != n || err != nil {
				t.Errorf("%s got %d, %v", resource, got, err)
			}
		})
	}
	c.inFlight()
	for n, resource := range []string{"b", "c", "a", "b"} {
		ask(resource, n)
		c.arrived(n + 1)
	}
	c.end(0)
	wg.Wait()
	ask("slow", 1)
	for slow := false; !slow; time.Sleep(time.Millisecond) {
		mu.Lock()
		slow = sent[len(sent)-1] == "slow"
		mu.Unlock()
	}
	if _, err := c.do(context.Background(), "d", 5, Grace); err != nil {
		t.Error(err)
	}
	close(gate)
	wg.Wait()
	c.close()
	slices.Sort(sent)
	if want := []string{"a b c", "b", "d", "slow"}; !slices.Equal(sent, want) {
		t.Errorf("sent %q, want %q", sent, want)
	}
}

// TestSettle: settle waits for a statement in flight, however many come after
// it.
func TestSettle(t *testing.T) {
	sending, release := make(chan struct{}), make(chan struct{})
	c := newCombiner(new(resuming), nil, func(_ context.Context, ops []*operation[int, int]) {
		sending <- struct{}{}
		<-release
		fail(ops, nil)
	})
	c.settle() // nothing is in flight
	var wg sync.WaitGroup
	for n := range 3 {
		wg.Go(func() { c.do(context.Background(), "r", n, Grace) })
	}
	<-sending
	c.mu.Lock()
	turn := c.turn
	c.mu.Unlock()
	settled := make(chan int, 1)
	go func() {
		c.settle()
		c.mu.Lock()
		defer c.mu.Unlock()
		settled <- c.turn - turn
	}()
	for range 2 {
		time.Sleep(time.Millisecond)
		release <- struct{}{}
		<-sending
	}
	if n := <-settled; n < 1 {
		t.Error("it waited for nothing")
	}
	release <- struct{}{}
	wg.Wait()
	c.close()
}

// TestSlowStatement: a statement that is stuck holds up nobody for longer than
// slowAfter, whether an operation waits for its turn, or settle, which waits for the
// next statement as well; they may come before it is sent or after.
func TestSlowStatement(t *testing.T) {
	for _, early := range []bool{true, false} {
		for _, waits := range []string{"settle", "operation", "settle and operation"} {
			synctest.Test(t, func(t *testing.T) {
				gate := make(chan struct{})
				c := newCombiner(new(resuming), func() {
					if early {
						time.Sleep(time.Millisecond) // not sent yet
					}
				}, func(_ context.Context, ops []*operation[int, int]) {
					<-gate
					fail(ops, nil)
				})
				var stuck, held sync.WaitGroup
				stuck.Go(func() { c.do(context.Background(), "stuck", 1, Grace) })
				synctest.Wait()
				began, turns := time.Now(), 1
				if waits != "operation" {
					held.Go(c.settle)
				}
				if waits != "settle" {
					stuck.Go(func() { c.do(context.Background(), "held up", 2, Grace) })
				}
				if waits == "settle and operation" {
					turns = 2
				}
				if waits == "operation" {
					time.Sleep(slowAfter + 3*time.Millisecond)
					c.mu.Lock()
					left := len(c.waiting)
					c.mu.Unlock()
					if left != 0 {
						t.Errorf("early %t: it was not sent", early)
					}
				}
				held.Wait()
				if took, most := time.Since(began), time.Duration(turns)*(slowAfter+time.Millisecond)+3*time.Millisecond; took > most {
					t.Errorf("early %t, %s: held up for %v", early, waits, took)
				}
				close(gate)
				stuck.Wait()
				c.close()
			})
		}
	}
}

// TestCloseEndsNoStatement: an operation that is in flight with others when its
// combiner is closed is answered, and so is one that waits for its turn; ending
// the statement would leave the outcome of a release unknown, and the lease in
// place.
func TestCloseEndsNoStatement(t *testing.T) {
	sending, gate := make(chan struct{}, 2), make(chan struct{})
	c := newCombiner(new(resuming), nil, func(ctx context.Context, ops []*operation[int, int]) {
		sending <- struct{}{}
		select {
		case <-gate:
		case <-ctx.Done():
		}
		for _, o := range taken(ops) {
			o.done(o.question, ctx.Err())
		}
	})
	c.inFlight()
	var wg sync.WaitGroup
	for n, resource := range []string{"a", "b", "b"} {
		wg.Go(func() {
			if got, err := c.do(context.Background(), resource, n, Grace); got != n || err != nil {
				t.Errorf("%s got %d, %v", resource, got, err)
			}
		})
	}
	c.arrived(3)
	c.end(0)
	<-sending
	closed := make(chan struct{})
	go func() { c.close(); close(closed) }()
	for refused := false; !refused; time.Sleep(time.Millisecond) {
		c.mu.Lock()
		refused = c.closed
		c.mu.Unlock()
	}
	select {
	case <-closed:
		t.Error("close did not wait")
	case <-time.After(3 * Grace): // by which it used to end the statement
	}
	close(gate)
	wg.Wait()
	<-closed
}

// TestGivesUpInFlight: if the statement goes on for longer than twice the grace,
// its outcome is unknown, and the answer that comes later is nobody's.
func TestGivesUpInFlight(t *testing.T) {
	r, gate, sent := new(resuming), make(chan struct{}), make(chan struct{})
	c := newCombiner(r, nil, func(_ context.Context, ops []*operation[int, int]) {
		for _, o := range taken(ops) {
			close(sent)
			<-gate
			o.done(o.question, nil)
		}
	})
	c.inFlight()
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan error, 1)
	go func() { _, err := c.do(ctx, "r", 1, time.Millisecond); got <- err }()
	c.arrived(1)
	c.end(0)
	<-sent
	cancel()
	if err := <-got; !errors.Is(err, context.Canceled) || NothingWritten(err) {
		t.Errorf("got %v", err)
	}
	close(gate)
	c.close()
	if r.n != 0 {
		t.Errorf("%d callers are awaited", r.n)
	}
}

// TestAnsweredTogether: an operation waits for callers that have their answer and
// do not run yet, and is sent together with what they ask next. It does not wait
// for longer than four milliseconds, nor where nobody has to run.
func TestAnsweredTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := new(resuming)
		sent := make(chan int, 9)
		c := newCombiner(r, nil, func(ctx context.Context, ops []*operation[int, int]) {
			sent <- len(ops)
			carryOut(ctx, ops)
		})
		ask := func(resource string) {
			go func() {
				if got, err := c.do(t.Context(), resource, 7, Grace); got != 7 || err != nil {
					t.Errorf("got %d, %v", got, err)
				}
			}()
		}
		began := time.Now()
		ask("alone")
		if n := <-sent; n != 1 || time.Since(began) != 0 {
			t.Errorf("%d sent together after %v", n, time.Since(began))
		}
		synctest.Wait()

		r.add(2)
		ask("first")
		synctest.Wait()
		r.add(-1)
		ask("second")
		synctest.Wait()
		if len(sent) != 0 {
			t.Error("sent before all of them ran")
		}
		r.add(-1)
		if n := <-sent; n != 2 || time.Since(began) != 0 {
			t.Errorf("%d sent together after %v", n, time.Since(began))
		}
		synctest.Wait()

		r.add(1) // and never runs
		ask("late")
		if n := <-sent; n != 1 || time.Since(began) != 4*time.Millisecond {
			t.Errorf("%d sent together after %v", n, time.Since(began))
		}
		c.close()
	})
}
