package inflight

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost-go/fencepost/internal/testkit"
)

// TestDrain: Drain waits for what has begun, and nothing begins from the moment at
// which the last of it ends.
func TestDrain(t *testing.T) {
	for range 100 {
		synctest.Test(t, func(t *testing.T) {
			var c Count
			if !c.Begin() || !c.Go(func() { time.Sleep(time.Second) }) {
				t.Fatal("nothing begins")
			}
			drained := make(chan error, 2)
			for range 2 {
				go func() { drained <- c.Drain(t.Context()) }()
			}
			time.Sleep(2 * time.Second)
			synctest.Wait()
			if len(drained) > 0 || !c.Begin() {
				t.Fatal("Drain does not wait, or nothing begins while it does")
			}
			c.End()
			c.End()
			if c.Begin() || c.Go(func() {}) {
				t.Error("something begins after the last")
			}
			testkit.Check(t, errors.Join(<-drained, <-drained, c.Drain(t.Context())))
		})
	}
}

// TestDrainGivesUp: after the end of the context nothing begins, and a later Drain
// waits for what is still in flight.
func TestDrainGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Count
		c.Begin()
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errGaveUp)
		defer cancel()
		if err := c.Drain(ctx); err != errGaveUp || c.Begin() {
			t.Errorf("%v, or something begins", err)
		}
		time.AfterFunc(time.Minute, c.End)
		if began := time.Now(); c.Drain(t.Context()) != nil || time.Since(began) != time.Minute {
			t.Errorf("waited %v", time.Since(began))
		}
	})
}

var errGaveUp = errors.New("gave up")

// TestDrainOfNothing returns at once.
func TestDrainOfNothing(t *testing.T) {
	var c Count
	if c.Begin() {
		c.End()
	}
	if err := c.Drain(t.Context()); err != nil || c.Begin() {
		t.Errorf("%v, or something begins", err)
	}
}
