package redis_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/redislock"
)

// TestSubscribingHangsOnce: a subscription that the server never confirms is given
// up, and a later watch subscribes again. What the first brings after that is
// ended.
func TestSubscribingHangsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		var calls, stopped atomic.Int64
		i, err := redislock.New(func(context.Context, ...any) (any, error) { return []any{"free", "1"}, nil },
			&redislock.Options{Prompt: true, Subscribe: func(context.Context, string, func(string)) (func(), error) {
				if calls.Add(1) == 1 {
					<-hang
					return func() { stopped.Add(1) }, nil
				}
				return func() {}, nil
			}})
		if err != nil {
			t.Fatal(err)
		}
		watch := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			w, err := i.Watch(ctx, driver.Watch{Resource: "r", LeaseID: "w"}, func() {})
			if err == nil {
				w.Stop()
			}
			return err
		}
		if err := watch(); !errors.Is(err, driver.ErrNoWatch) {
			t.Errorf("while the subscription hangs: %v; want ErrNoWatch", err)
		}
		time.Sleep(time.Minute)
		if err := watch(); err != nil || calls.Load() != 2 {
			t.Errorf("a minute later: %v after %d subscriptions", err, calls.Load())
		}
		close(hang)
		synctest.Wait()
		if stopped.Load() != 1 {
			t.Errorf("the subscription that came too late was ended %d times", stopped.Load())
		}
		if err := i.Close(); err != nil {
			t.Error(err)
		}
	})
}
