package zklock

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// counted is a context that counts the functions that wait for its end.
type counted struct {
	context.Context
	done chan struct{}
	n    atomic.Int64
}

func (c *counted) Done() <-chan struct{} { return c.done }

func (c *counted) AfterFunc(func()) (stop func() bool) {
	c.n.Add(1)
	return sync.OnceValue(func() bool { c.n.Add(-1); return true })
}

// TestSpentIDsLeaveNothing: once the spent lease IDs have been swept, nothing of
// them is left in the issuer.
func TestSpentIDsLeaveNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i, err := New([]string{"127.0.0.1:1"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx := &counted{Context: context.Background(), done: make(chan struct{})}
		i.ctx = ctx
		i.closed = true // so that the sweep begins no session
		for range 10 {
			i.sweepLater("r")
		}
		if n := ctx.n.Load(); n == 0 {
			t.Error("control: Close does not end what waits for an hour")
		}
		time.Sleep(spentFor + 2*time.Minute)
		synctest.Wait()
		if n := ctx.n.Load(); n != 0 {
			t.Errorf("after the sweep the issuer's context still has %d functions", n)
		}
	})
}
