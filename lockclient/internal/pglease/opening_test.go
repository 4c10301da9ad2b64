package pglease_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/input"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// TestWatchWhileOpening: a watch waits for the listening connection while it is
// being opened, for as long as it is told to, but not for one that follows a
// failed one.
func TestWatchWhileOpening(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	acquire(t, newIssuer(t, pool, nil), "r", "holder's")
	type gate struct {
		begun, result chan error
	}
	begin := func(t *testing.T) (*pglease.Issuer, gate) {
		g := gate{make(chan error, 100), make(chan error)}
		i := newIssuer(t, pool, nil)
		done := make(chan struct{})
		i.BeforeListen(func() error {
			g.begun <- nil
			select {
			case err := <-g.result:
				return err
			case <-done:
				return errors.New("the test is over")
			}
		})
		t.Cleanup(func() { close(done) })
		t.Cleanup(i.Subscribe("somebody waits", func() {}))
		return i, g
	}
	watch := func(ctx context.Context, i *pglease.Issuer, wait time.Duration) error {
		watching, err := i.Watch(ctx, driver.Watch{Resource: "r", LeaseID: input.NewLeaseID(), Wait: wait}, func() {})
		if err == nil {
			defer watching.Stop()
			if watching.Held == nil {
				return errors.New("nobody has the lease")
			}
		}
		return err
	}
	waits := func(i *pglease.Issuer) chan error {
		got := make(chan error, 1)
		go func() { got <- watch(context.Background(), i, time.Hour) }()
		return got
	}
	t.Run("not told to wait, or not for long", func(t *testing.T) {
		i, _ := begin(t)
		for _, wait := range []time.Duration{0, time.Millisecond} {
			if err := watch(t.Context(), i, wait); !errors.Is(err, driver.ErrNoWatch) {
				t.Errorf("%v: %v", wait, err)
			}
		}
	})
	t.Run("given up", func(t *testing.T) {
		i, _ := begin(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := watch(ctx, i, time.Hour); err == nil {
			t.Error("it watches")
		}
	})
	t.Run("closed", func(t *testing.T) {
		i, g := begin(t)
		got := waits(i)
		<-g.begun
		go func() { g.result <- errors.New("refused") }()
		i.Close()
		if err := <-got; err == nil {
			t.Error("it watches")
		}
	})
	t.Run("opened", func(t *testing.T) {
		i, g := begin(t)
		got := waits(i)
		g.result <- nil
		testkit.Check(t, <-got)
		// The connection breaks, and the watch waits for the next one too.
		pids := listenerPIDs(t, pool)
		mustExec(t, pool, "SELECT pg_terminate_backend(pid) FROM unnest($1::integer[]) AS p(pid)", pids)
		testkit.Eventually(t, "that is noticed", func() bool { return !i.Listening() })
		got = waits(i)
		g.result <- nil
		testkit.Check(t, <-got)
	})
	t.Run("failed", func(t *testing.T) {
		i, g := begin(t)
		got := waits(i)
		g.result <- errors.New("refused")
		if err := <-got; !errors.Is(err, driver.ErrNoWatch) {
			t.Error(err)
		}
		<-g.begun
		<-g.begun // once more
		if err := watch(t.Context(), i, time.Hour); !errors.Is(err, driver.ErrNoWatch) {
			t.Error(err)
		}
		g.result <- nil
		testkit.Eventually(t, "it listens", i.Listening)
		testkit.Check(t, watch(t.Context(), i, 0))
	})
}

// TestReleaseWithoutConnecting: a holder that has renewed nothing releases on an
// idle connection of its pool, and opens none for that; if the caller uses all
// of them, it opens one.
func TestReleaseWithoutConnecting(t *testing.T) {
	t.Parallel()
	base := migrated(t)
	for _, taken := range []bool{false, true} {
		var opened atomic.Int64
		pool := dial(t, base, func(c *pgxpool.Config) {
			c.MaxConns = 1
			connect := c.BeforeConnect
			c.BeforeConnect = func(ctx context.Context, cc *pgx.ConnConfig) error {
				opened.Add(1)
				if connect != nil {
					return connect(ctx, cc)
				}
				return nil
			}
		})
		i := newIssuer(t, pool, nil)
		claim := acquire(t, i, "r", input.NewLeaseID())
		want := int64(1)
		if taken {
			conn, err := pool.Acquire(t.Context())
			testkit.Must(t, err)
			defer conn.Release()
			want = 2
		}
		release(t, i, claim)
		if n := opened.Load(); n != want {
			t.Errorf("the caller has all connections: %t; %d were opened, want %d", taken, n, want)
		}
	}
}
