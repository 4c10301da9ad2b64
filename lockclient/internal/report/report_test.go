package report

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestBlocked: nobody waits for a function that blocks. What does not fit is dropped and
// counted, and the rest is called in order once it goes on.
func TestBlocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lost, gate := 0, make(chan struct{})
		q := &Queue{Lost: func(n int) { lost += n }}
		var called, want []int
		q.Add(func() { <-gate })
		synctest.Wait() // it has been taken out of the queue
		for n := range Most + 7 {
			q.Add(func() { called = append(called, n) })
			if n < Most {
				want = append(want, n)
			}
		}
		ended, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if q.Drain(ended); len(called) != 0 || ended.Err() == nil {
			t.Errorf("drained while it blocks: %d called", len(called))
		}
		close(gate)
		q.Drain(t.Context())
		if !slices.Equal(called, want) || lost != 7 {
			t.Errorf("%d called, want %d in order; %d lost, want 7", len(called), len(want), lost)
		}
		q.Add(func() { called = nil })
		if q.Drain(t.Context()); called != nil {
			t.Error("it does not go on")
		}
	})
}
