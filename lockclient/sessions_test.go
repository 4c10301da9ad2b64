package lockclient

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/internal/leasetest"
)

// TestNoNewConnection: leases are renewed and released on idle connections of the
// caller's pool while no other can be opened, whatever the reason. (P7)
func TestNoNewConnection(t *testing.T) {
	t.Parallel()
	for name, fails := range map[string]func(ctx context.Context) error{
		"refused": func(context.Context) error { return errors.New("another password") },
		"hangs":   func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var none atomic.Bool
			var refused atomic.Int64
			pool := dial(t, migrated(t).Config().ConnString(), func(c *pgxpool.Config) {
				c.BeforeConnect = func(ctx context.Context, _ *pgx.ConnConfig) error {
					if none.Load() {
						refused.Add(1)
						return fails(ctx)
					}
					return nil
				}
			})
			client := newTestClient(t, pool, &Options{OpTimeout: 4 * time.Second})
			patient(client) // what was sent may take longer
			lease := mustTry(t, client, "r", time.Hour)
			none.Store(true)
			if err := lease.Renew(t.Context()); err != nil || refused.Load() == 0 {
				t.Errorf("after %d refused connections: %v", refused.Load(), err)
			}
			testkit.Check(t, lease.Release(t.Context()))
		})
	}
}

// TestReadOnlySession: a session that has become read-only, as it does when its
// server becomes a standby, is given up at its first refusal, whoever's pool it is in,
// and the lease is renewed in another one. (P7)
func TestReadOnlySession(t *testing.T) {
	t.Parallel()
	direct := migrated(t)
	var readOnly atomic.Bool
	pool := dial(t, direct.Config().ConnString(), func(c *pgxpool.Config) {
		c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			if !readOnly.Load() {
				return nil
			}
			_, err := conn.Exec(ctx, "SET default_transaction_read_only = on")
			return err
		}
	})
	client := newTestClient(t, pool, nil)
	lease := mustTry(t, client, "r", time.Hour)
	readOnly.Store(true) // for the first one of the client's own
	conn, err := pgxpool.NewWithConfig(t.Context(), pool.Config())
	testkit.Must(t, err)
	defer conn.Close()
	if _, err := conn.Exec(t.Context(), "UPDATE fencepost.leases SET metadata = 'x'"); err == nil {
		t.Error("the control, a statement in such a session, was not refused")
	}
	if err := lease.Renew(t.Context()); err == nil {
		t.Error("renewed in a session that is read-only")
	}
	readOnly.Store(false)
	for range 2 {
		testkit.Check(t, lease.Renew(t.Context()))
	}
	mustExec(t, pool, "SET default_transaction_read_only = on") // in the connection that grants
	if _, err := client.TryAcquire(t.Context(), "s", &AcquireOptions{TTL: time.Hour}); err != nil {
		t.Error(err)
	}
}

type tenantKey struct{}

// TestHooksSeeValues: the pool's hooks, which may need a value of the caller's context,
// see it in combined acquires, renewals, releases and the listening connection too.
func TestHooksSeeValues(t *testing.T) {
	t.Parallel()
	var without atomic.Int64
	check := func(ctx context.Context) error {
		if ctx.Value(tenantKey{}) == nil {
			without.Add(1)
			return errors.New("no tenant")
		}
		return nil
	}
	direct := migrated(t)
	pool := dial(t, direct.Config().ConnString(), func(c *pgxpool.Config) {
		c.MaxConns = 4
		c.BeforeConnect = func(ctx context.Context, _ *pgx.ConnConfig) error { return check(ctx) }
		c.PrepareConn = func(ctx context.Context, _ *pgx.Conn) (bool, error) { return true, check(ctx) }
	})
	var events leasetest.Tally
	client := newTestClient(t, pool, &Options{Observer: &events})
	ctx := context.WithValue(t.Context(), tenantKey{}, "acme")
	leases := make([]*Lease, 40)
	var wg sync.WaitGroup
	for n := range leases {
		wg.Go(func() {
			lease, err := client.TryAcquire(ctx, fmt.Sprint("r", n), &AcquireOptions{TTL: time.Hour})
			if err != nil {
				t.Error(err)
				return
			}
			leases[n] = lease
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	for _, lease := range leases {
		testkit.Must(t, lease.KeepAlive(20*time.Millisecond))
	}
	testkit.Eventually(t, "they are renewed", func() bool { return events.Count(guard.OpRenew) > 100 })
	waiting, cancel := context.WithCancel(ctx)
	over := make(chan error, 1)
	go func() {
		_, err := client.Acquire(waiting, "r0", &AcquireOptions{TTL: time.Hour})
		over <- err
	}()
	testkit.Eventually(t, "a waiter rests", func() bool { return rests(t, direct, "r0") })
	cancel()
	<-over
	for _, lease := range leases {
		wg.Go(func() {
			testkit.Check(t, lease.Release(ctx))
		})
	}
	wg.Wait()
	if n := without.Load(); n != 0 {
		t.Errorf("a hook was called %d times without the value", n)
	}
}
