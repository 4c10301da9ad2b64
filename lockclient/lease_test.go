package lockclient

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/leasetest"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

func TestLease(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	client := newTestClient(t, pool, nil)
	move := movable(client)
	const ttl = time.Hour
	lease := mustTry(t, client, "r", ttl)
	r := rowOf(t, pool, "r")
	want := guard.Claim{Resource: "r", Token: guard.Token(r.Token), LeaseID: *r.LeaseID}
	if lease.Claim() != want || lease.Resource() != "r" || lease.Token() != want.Token || lease.ID() != want.LeaseID ||
		lease.Owner() != r.Owner || lease.TTL() != ttl || !lease.AcquiredAt().Equal(r.AcquiredAt) {
		t.Errorf("%+v is not the lease of %+v", lease.Claim(), r)
	}
	if !lease.Valid() || lease.Err() != nil || lease.Remaining() <= 0 || lease.Remaining() > ttl*999/1000 {
		t.Errorf("valid %t, %v, remaining %v", lease.Valid(), lease.Err(), lease.Remaining())
	}
	before := lease.deadline
	move(20 * time.Minute)
	if err := lease.Renew(t.Context()); err != nil || lease.deadline < before+20*time.Minute {
		t.Errorf("renew: %v, the deadline moved by %v", err, lease.deadline-before)
	}
	move(ttl)
	<-lease.Done()
	var lost *LostError
	if lease.Valid() || lease.Remaining() != 0 || !errors.As(lease.Err(), &lost) || lost.Claim != want ||
		!errors.Is(lease.Err(), ErrLeaseLost) {
		t.Errorf("after its end: %v", lease.Err())
	}
	if err := lease.Renew(t.Context()); !errors.Is(err, ErrLeaseLost) {
		t.Errorf("renew after the end: %v", err)
	}
}

// TestRelease: Release ends the lease at once, frees the row, may be repeated, and
// works under an ended context.
func TestRelease(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	client := newTestClient(t, pool, nil)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	lease := mustTry(t, client, "r", time.Hour)
	for range 2 {
		testkit.Must(t, lease.Release(ended))
	}
	if err := lease.Err(); err != ErrReleased || lease.Valid() || rowOf(t, pool, "r").LeaseID != nil {
		t.Errorf("Err %v, row %+v", err, rowOf(t, pool, "r"))
	}
	<-lease.Done()
}

// TestLeaseConcurrently: every method from many goroutines; for -race.
func TestLeaseConcurrently(t *testing.T) {
	expectNoGoroutines(t)
	pool := migrated(t)
	client := newTestClient(t, pool, nil)
	for range 5 {
		lease := mustTry(t, client, "r", time.Hour)
		var wg sync.WaitGroup
		for i := range 16 {
			wg.Go(func() {
				for range 10 {
					lease.Valid()
					lease.Remaining()
					if err := lease.Renew(t.Context()); err != nil && !errors.Is(err, ErrReleased) {
						t.Error(err)
					}
					if i == 7 {
						time.Sleep(time.Millisecond)
					}
				}
				if i%5 == 0 {
					testkit.Check(t, lease.Release(t.Context()))
				}
			})
		}
		wg.Wait()
		if err := lease.Err(); err != ErrReleased {
			t.Error(err)
		}
	}
}

// TestPoolOfOne: a caller that keeps its only connection does not starve the
// renewals. The control renews on the caller's pool: no renewal gets through,
// and when the TTL has passed the lease is lost.
func TestPoolOfOne(t *testing.T) {
	t.Parallel()
	hold := func(t *testing.T, events *leasetest.Tally, change func(*Client), inside func(ctx context.Context)) error {
		pool := dial(t, migrated(t).Config().ConnString(), func(c *pgxpool.Config) { c.MaxConns = 1 })
		client := newTestClient(t, pool, &Options{Observer: events})
		change(client)
		return client.Hold(t.Context(), "r", renewing20ms, func(ctx context.Context) error {
			conn, err := pool.Acquire(ctx)
			if err != nil {
				return err
			}
			defer conn.Release()
			inside(ctx)
			return context.Cause(ctx)
		})
	}
	t.Run("own connections", func(t *testing.T) {
		events := new(leasetest.Tally)
		err := hold(t, events, func(*Client) {}, func(context.Context) {
			testkit.Eventually(t, "renewals go on", func() bool { return events.Count(guard.OpRenew) >= 3 })
		})
		testkit.Check(t, err)
	})
	t.Run("control", func(t *testing.T) {
		var move func(time.Duration)
		events := new(leasetest.Tally)
		err := hold(t, events, func(c *Client) {
			c.issuer = callersPool{c.issuer.(*pglease.Issuer)}
			move = movable(c)
		}, func(ctx context.Context) {
			lease := leaseFrom(ctx)
			testkit.Eventually(t, "a renewal", func() bool {
				lease.mu.Lock()
				defer lease.mu.Unlock()
				return lease.renewing
			})
			move(lease.TTL())
			if n := events.Count(guard.OpRenew); n != 0 {
				t.Errorf("%d renewals got through", n)
			}
		})
		if !errors.Is(err, ErrLeaseLost) {
			t.Errorf("the lease outlived renewals on the caller's pool: %v", err)
		}
	})
}

// callersPool renews on the caller's pool.
type callersPool struct{ *pglease.Issuer }

func (c callersPool) Renew(ctx context.Context, renewals []driver.Renewal, results []driver.Renewed) {
	for n, r := range renewals {
		from := driver.Now()
		err := c.On(ctx, c.Pool, c.OpTimeout, func(ctx context.Context, conn *pgx.Conn, _ string) error {
			_, err := conn.Exec(ctx, "UPDATE fencepost.leases SET expires_at = clock_timestamp() + $2::bigint * interval '1 microsecond' WHERE resource = $1",
				r.Claim.Resource, r.TTL.Microseconds())
			return err
		})
		results[n] = driver.Renewed{State: driver.Extended, From: from}
		if err != nil {
			results[n] = driver.Renewed{Err: pglease.Failure("renew", r.Claim, err)}
		}
	}
}

// renewAs sends a late renewal past the client's own checks.
func renewAs(c *Client, claim guard.Claim) (held bool, err error) {
	results := make([]driver.Renewed, 1)
	c.issuer.Renew(context.Background(), []driver.Renewal{{Claim: claim, TTL: time.Minute}}, results)
	return results[0].State == driver.Extended, results[0].Err
}

// TestHold: fn runs under a renewed lease that its context carries, and the
// lease is free when Hold returns fn's error.
func TestHold(t *testing.T) {
	expectNoGoroutines(t)
	pool := migrated(t)
	client := newTestClient(t, pool, nil)
	mine := errors.New("mine")
	var inner context.Context
	err := client.Hold(t.Context(), "r", renewing20ms, func(ctx context.Context) error {
		inner = ctx
		claim, _ := guard.ClaimFrom(ctx)
		lease, ok := guard.LeaseFrom(ctx)
		if r := rowOf(t, pool, "r"); !ok || !lease.Valid() || claim.LeaseID != *r.LeaseID || int64(claim.Token) != r.Token {
			t.Errorf("the context carries %+v, the row is %+v", claim, r)
		}
		awaitRenewals(t, pool, "r")
		if ctx.Err() != nil || !lease.Valid() || !rowOf(t, pool, "r").Live {
			t.Errorf("not renewed: %v", context.Cause(ctx))
		}
		return mine
	})
	if err != mine {
		t.Errorf("got %v", err)
	}
	if context.Cause(inner) != ErrReleased {
		t.Errorf("the context's cause is %v", context.Cause(inner))
	}
	if rowOf(t, pool, "r").Live {
		t.Error("not released")
	}
	if len(ownGoroutines()) > 0 && renewing() {
		t.Error("the renewal outlived Hold")
	}
}

// TestHoldInsideHold: waiting for a lease that the context stands under is refused
// at once, also through another lease. Another client waits, as does one without the
// context, and the same is granted once the outer lease is over.
func TestHoldInsideHold(t *testing.T) {
	pool := migrated(t)
	client, other := newTestClient(t, pool, nil), newTestClient(t, pool, nil)
	opts, none := &AcquireOptions{TTL: time.Minute}, func(context.Context) error { return nil }
	err := client.Hold(t.Context(), "r", opts, func(outer context.Context) error {
		return client.Hold(outer, "s", opts, func(ctx context.Context) error {
			_, acquired := client.Acquire(ctx, "r", &AcquireOptions{TTL: time.Minute})
			for how, err := range map[string]error{"r": client.Hold(ctx, "r", opts, none), "s": client.Hold(ctx, "s", opts, none), "Acquire": acquired} {
				if !errors.Is(err, guard.ErrInvalid) || !strings.Contains(err.Error(), "wait for itself") {
					t.Errorf("%s: %v", how, err)
				}
			}
			if err := client.TryHold(ctx, "r", opts, none); !errors.Is(err, ErrHeld) {
				t.Errorf("TryHold: %v", err)
			}
			for how, c := range map[string]*Client{"another client": other, "without the context": client} {
				under := ctx
				if c == client {
					under = t.Context()
				}
				soon, cancel := context.WithTimeout(under, 50*time.Millisecond)
				if err := c.Hold(soon, "r", opts, none); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%s: %v", how, err)
				}
				cancel()
			}
			lease, _ := guard.LeaseFrom(outer)
			testkit.Check(t, lease.(*Lease).Release(t.Context()))
			return client.Hold(context.WithoutCancel(ctx), "r", opts, none)
		})
	})
	testkit.Check(t, err)
}

// renewing20ms makes a lease be renewed soon but not be lost on a slow machine.
var renewing20ms = &AcquireOptions{TTL: time.Hour, RenewInterval: 20 * time.Millisecond}

// awaitRenewals returns when the server has renewed the lease three times.
func awaitRenewals(t testing.TB, pool *pgxpool.Pool, resource string) {
	t.Helper()
	for range 3 {
		before := rowOf(t, pool, resource).ExpiresAt
		testkit.Eventually(t, "the lease is renewed", func() bool { return rowOf(t, pool, resource).ExpiresAt.After(before) })
	}
}

// renewing reports whether a renewal loop runs.
func renewing() bool {
	for _, stack := range ownGoroutines() {
		if containsAny(stack, "(*Lease).keep") {
			return true
		}
	}
	return false
}

// TestHoldEndsAnyhow: a panic propagates with its value, Goexit ends the
// goroutine, and both release first and leave no renewal behind.
func TestHoldEndsAnyhow(t *testing.T) {
	expectNoGoroutines(t)
	pool := migrated(t)
	client := newTestClient(t, pool, nil)
	type value struct{ int }
	for name, end := range map[string]func(){
		"panic":     func() { panic(value{7}) },
		"nil deref": func() { var p *value; p.int++ },
		"Goexit":    runtime.Goexit,
	} {
		t.Run(name, func(t *testing.T) {
			var recovered any
			done := make(chan struct{})
			go func() {
				defer close(done)
				defer func() { recovered = recover() }()
				client.Hold(t.Context(), "r", &AcquireOptions{TTL: time.Minute}, func(context.Context) error {
					end()
					return nil
				})
				t.Error("Hold returned")
			}()
			<-done
			switch err, _ := recovered.(runtime.Error); {
			case name == "panic" && recovered != value{7}, name == "nil deref" && err == nil, name == "Goexit" && recovered != nil:
				t.Errorf("recovered %v", recovered)
			}
			if rowOf(t, pool, "r").Live {
				t.Error("not released")
			}
			if renewing() {
				t.Error("the renewal goes on")
			}
		})
	}
}

// TestHoldLost: fn's context ends with the loss as its cause, and Hold's error
// wraps the loss and fn's error, even if fn ignored its context.
func TestHoldLost(t *testing.T) {
	expectNoGoroutines(t)
	pool := migrated(t)
	client := newTestClient(t, pool, nil)
	mine := errors.New("mine")
	cut := func() { mustExec(t, pool, "UPDATE fencepost.leases SET lease_id = NULL, token = token + 1") }
	for name, test := range map[string]struct {
		fn   func(ctx context.Context) error
		want []error
	}{
		"waits for its context": {func(ctx context.Context) error {
			cut()
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), ErrLeaseLost) {
				t.Errorf("the cause is %v", context.Cause(ctx))
			}
			return mine
		}, []error{ErrLeaseLost, mine}},
		"does not look":           {func(ctx context.Context) error { cut(); <-leaseFrom(ctx).Done(); return nil }, []error{ErrLeaseLost}},
		"cut just before its end": {func(context.Context) error { cut(); return mine }, []error{ErrLeaseLost, mine}},
		"not lost":                {func(context.Context) error { return mine }, []error{mine}},
	} {
		t.Run(name, func(t *testing.T) {
			err := client.Hold(t.Context(), "r", renewing20ms, test.fn)
			for _, want := range []error{ErrLeaseLost, mine} {
				wanted := false
				for _, w := range test.want {
					wanted = wanted || w == want
				}
				if errors.Is(err, want) != wanted {
					t.Errorf("got %v, want %v: %t", err, want, wanted)
				}
			}
		})
	}
}

// TestHoldOutlivesCancel: the lease is renewed until fn returns, even if its
// context has ended, and is then released.
func TestHoldOutlivesCancel(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	client := newTestClient(t, pool, nil)
	ctx, cancel := context.WithCancel(t.Context())
	err := client.Hold(ctx, "r", renewing20ms, func(held context.Context) error {
		cancel()
		<-held.Done()
		awaitRenewals(t, pool, "r")
		if lease, _ := guard.LeaseFrom(held); !lease.Valid() || !rowOf(t, pool, "r").Live {
			t.Error("the lease ended before fn")
		}
		return context.Cause(held)
	})
	if err != context.Canceled || rowOf(t, pool, "r").Live {
		t.Errorf("got %v, row %+v", err, rowOf(t, pool, "r"))
	}
}

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
