package pglease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/internal/pause"
)

// carryOut answers each operation with its question.
func carryOut(_ context.Context, ops []*operation[int, int]) {
	for _, o := range taken(ops) {
		o.done(o.question, nil)
	}
}

// inFlight makes it look as if a statement were in flight that is never slow.
func (b *batcher[Q, A]) inFlight() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.busy, b.slow = true, time.NewTimer(testkit.Patience)
}

// arrived returns when that many operations wait.
func (b *batcher[Q, A]) arrived(n int) {
	for there := -1; there != n; time.Sleep(time.Millisecond) {
		b.mu.Lock()
		there = len(b.waiting)
		b.mu.Unlock()
	}
}

func batching(send func(context.Context, []*operation[int, int])) *batcher[int, int] {
	return &batcher[int, int]{send: send}
}

// TestTakenOnce: an operation that was answered, or whose caller has gone, is
// not sent again.
func TestTakenOnce(t *testing.T) {
	op := func() *operation[int, int] {
		return &operation[int, int]{ctx: t.Context(), answered: make(chan struct{})}
	}
	waiting, answered, gone := op(), op(), op()
	if n := len(taken([]*operation[int, int]{waiting, answered})); n != 2 {
		t.Errorf("%d of 2 are sent", n)
	}
	answered.done(1, nil)
	answered.done(2, errors.New("later")) // the first answer counts
	gone.state.Store(left)
	if again := taken([]*operation[int, int]{waiting, answered, gone}); len(again) != 1 || again[0] != waiting {
		t.Errorf("%d of 3 are sent again", len(again))
	}
	if answered.answer != 1 || answered.err != nil {
		t.Errorf("answered %d, %v", answered.answer, answered.err)
	}
}

// TestUnsent: an operation that was not sent before its caller left is
// known not to be written.
func TestUnsent(t *testing.T) {
	b := batching(carryOut)
	b.inFlight()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.do(ctx, "r", 2, pause.Grace); !NothingWritten(err) || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	b.end(0)
	if got, err := b.do(t.Context(), "r", 3, pause.Grace); got != 3 || err != nil {
		t.Errorf("got %d, %v", got, err)
	}
	b.close()
	if _, err := b.do(t.Context(), "r", 4, pause.Grace); !errors.Is(err, errClosed) {
		t.Errorf("closed: %v", err)
	}
}

// TestEachOnce: of many operations at once each is sent once, and answered with its own
// response.
func TestEachOnce(t *testing.T) {
	var mu sync.Mutex
	times := map[int]int{}
	b := batching(func(ctx context.Context, ops []*operation[int, int]) {
		mu.Lock()
		for _, o := range ops {
			times[o.question]++
		}
		mu.Unlock()
		carryOut(ctx, ops)
	})
	const all = 5 * maxBatch
	b.inFlight()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel() // of what was lost
	var wg sync.WaitGroup
	for n := range all {
		wg.Go(func() {
			if got, err := b.do(ctx, fmt.Sprint("r", n%(2*maxBatch)), n, pause.Grace); got != n || err != nil {
				t.Errorf("%d got %d, %v", n, got, err)
			}
		})
	}
	b.arrived(all)
	b.end(0)
	testkit.Eventually(t, "the end of the last statement", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return !b.busy && len(b.waiting) == 0
	})
	b.close()
	for n := range all {
		if times[n] != 1 {
			t.Errorf("operation %d was sent %d times", n, times[n])
			break
		}
	}
	cancel()
	wg.Wait()
}

// TestTogether: operations that arrive while a statement is in flight are sent
// together, one per resource, in the order of the resources; an operation that
// arrives while none is in flight is sent alone. A slow statement delays nobody.
func TestTogether(t *testing.T) {
	var mu sync.Mutex
	var sent []string
	gate := make(chan struct{})
	b := batching(func(ctx context.Context, ops []*operation[int, int]) {
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
			if got, err := b.do(context.Background(), resource, n, pause.Grace); got != n || err != nil {
				t.Errorf("%s got %d, %v", resource, got, err)
			}
		})
	}
	b.inFlight()
	for n, resource := range []string{"b", "c", "a", "b"} {
		ask(resource, n)
		b.arrived(n + 1)
	}
	b.end(0)
	wg.Wait()
	ask("slow", 1)
	for slow := false; !slow; time.Sleep(time.Millisecond) {
		mu.Lock()
		slow = sent[len(sent)-1] == "slow"
		mu.Unlock()
	}
	if _, err := b.do(context.Background(), "d", 5, pause.Grace); err != nil {
		t.Error(err)
	}
	close(gate)
	wg.Wait()
	b.close()
	slices.Sort(sent)
	if want := []string{"a b c", "b", "d", "slow"}; !slices.Equal(sent, want) {
		t.Errorf("sent %q, want %q", sent, want)
	}
}

// TestSlowStatement: a statement that is stuck holds up nobody for longer than
// slowAfter.
func TestSlowStatement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		b := batching(func(ctx context.Context, ops []*operation[int, int]) {
			if ops[0].resource == "stuck" {
				<-gate
			}
			carryOut(ctx, ops)
		})
		began := time.Now()
		var stuck sync.WaitGroup
		stuck.Go(func() { b.do(context.Background(), "stuck", 1, pause.Grace) })
		synctest.Wait()
		if _, err := b.do(context.Background(), "held up", 2, pause.Grace); err != nil || time.Since(began) != slowAfter {
			t.Errorf("held up for %v, %v", time.Since(began), err)
		}
		if _, err := b.do(context.Background(), "later", 3, pause.Grace); err != nil || time.Since(began) != slowAfter {
			t.Errorf("held up for %v, %v", time.Since(began), err)
		}
		close(gate)
		stuck.Wait()
		b.close()
	})
}

// TestCloseEndsNoStatement: an operation that is in flight with others when its
// batcher is closed is answered, and so is one that waits for its turn; ending
// the statement would leave the outcome of a release unknown, and the lease in
// place.
func TestCloseEndsNoStatement(t *testing.T) {
	sending, gate := make(chan struct{}, 2), make(chan struct{})
	b := batching(func(ctx context.Context, ops []*operation[int, int]) {
		sending <- struct{}{}
		select {
		case <-gate:
		case <-ctx.Done():
		}
		for _, o := range taken(ops) {
			o.done(o.question, ctx.Err())
		}
	})
	b.inFlight()
	var wg sync.WaitGroup
	for n, resource := range []string{"a", "b", "b"} {
		wg.Go(func() {
			if got, err := b.do(context.Background(), resource, n, pause.Grace); got != n || err != nil {
				t.Errorf("%s got %d, %v", resource, got, err)
			}
		})
	}
	b.arrived(3)
	b.end(0)
	<-sending
	closed := make(chan struct{})
	go func() { b.close(); close(closed) }()
	for refused := false; !refused; time.Sleep(time.Millisecond) {
		b.mu.Lock()
		refused = b.closed
		b.mu.Unlock()
	}
	select {
	case <-closed:
		t.Error("close did not wait")
	case <-time.After(3 * pause.Grace): // by which it used to end the statement
	}
	close(gate)
	wg.Wait()
	<-closed
}

// TestGivesUpInFlight: if the statement goes on for longer than twice the grace,
// its outcome is unknown, and the answer that comes later is nobody's.
func TestGivesUpInFlight(t *testing.T) {
	gate, sending := make(chan struct{}), make(chan struct{})
	b := batching(func(_ context.Context, ops []*operation[int, int]) {
		for _, o := range taken(ops) {
			close(sending)
			<-gate
			o.done(o.question, nil)
		}
	})
	b.inFlight()
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan error, 1)
	go func() { _, err := b.do(ctx, "r", 1, time.Millisecond); got <- err }()
	b.arrived(1)
	b.end(0)
	<-sending
	cancel()
	if err := <-got; !errors.Is(err, context.Canceled) || NothingWritten(err) {
		t.Errorf("got %v", err)
	}
	close(gate)
	b.close()
}
