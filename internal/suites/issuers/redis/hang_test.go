package redis_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost-go/fencepost/guard"
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
			&redislock.Options{Subscribe: func(context.Context, string, func(string)) (func(), error) {
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

// TestWatcherSubscribingHangs: a watcher's subscription that the server confirms
// after the watch was given up is ended.
func TestWatcherSubscribingHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		var stopped atomic.Int64
		i, err := redislock.New(func(context.Context, ...any) (any, error) { return []any{"free", "1"}, nil },
			&redislock.Options{Subscribe: func(context.Context, string, func(string)) (func(), error) {
				<-hang
				return func() { stopped.Add(1) }, nil
			}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		time.AfterFunc(time.Minute, func() { close(hang) })
		began := time.Now()
		if _, err := i.Watch(ctx, driver.Watch{Resource: "r"}, func() {}); !errors.Is(err, driver.ErrNoWatch) || time.Since(began) != time.Second {
			t.Errorf("after %v: %v; want ErrNoWatch after a second", time.Since(began), err)
		}
		time.Sleep(2 * time.Minute)
		if stopped.Load() != 1 {
			t.Errorf("the subscription that came too late was ended %d times", stopped.Load())
		}
	})
}

// TestAcquireHangs: an acquire without a response ends with Request.Timeout, and
// says whether it may have been granted.
func TestAcquireHangs(t *testing.T) {
	for name, test := range map[string]struct {
		answers int // how many commands get a response
		want    error
	}{
		"the clock": {0, guard.ErrUnavailable},
		"the lease": {1, guard.ErrOutcomeUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				answers := test.answers
				hang := make(chan struct{})
				i, err := redislock.New(func(context.Context, ...any) (any, error) {
					if answers--; answers < 0 {
						<-hang
					}
					return []any{"1", "0"}, nil // the time
				}, &redislock.Options{InsecureEviction: true})
				if err != nil {
					t.Fatal(err)
				}
				defer close(hang)
				began := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				r := ask("r", "a")
				r.Timeout = time.Second
				if _, err := i.Acquire(ctx, r); !errors.Is(err, test.want) || time.Since(began) != r.Timeout {
					t.Errorf("after %v: %v; want %v after %v", time.Since(began), err, test.want, r.Timeout)
				}
			})
		})
	}
}
