package lockclient

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"

	"github.com/jackc/pgx/v5/pgxpool"
)

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
