package pglease

import (
	"context"
	"errors"
	"testing"
)

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
	gone.leave(false)
	if again := taken([]*operation[int, int]{waiting, answered, gone}); len(again) != 1 || again[0] != waiting {
		t.Errorf("%d of 3 are sent again", len(again))
	}
	if answered.answer != 1 || answered.err != nil {
		t.Errorf("answered %d, %v", answered.answer, answered.err)
	}
}

// TestCombinerUnsent: what was not sent when its caller went is known not to be
// written.
func TestCombinerUnsent(t *testing.T) {
	release := make(chan struct{})
	var c combiner[int, int]
	c.send = func(ops []*operation[int, int]) {
		<-release
		for _, o := range taken(ops) {
			o.done(o.question, nil)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.do(ctx, "r", 1, Grace); !NothingWritten(err) || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	close(release)
	if got, err := c.do(t.Context(), "r", 2, Grace); got != 2 || err != nil {
		t.Errorf("got %d, %v", got, err)
	}
	c.close()
	if _, err := c.do(t.Context(), "r", 3, Grace); !errors.Is(err, errClosed) {
		t.Errorf("closed: %v", err)
	}
}
