package lockclient_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/driver/memory"
	"github.com/fencepost-go/fencepost/lockclient/locktest"
)

// TestCloseEndsHolds: Close ends the work, waits for it and releases.
func TestCloseEndsHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := locktest.New(t, nil)
		opts := &lockclient.AcquireOptions{TTL: time.Minute}
		inside, over := make(chan struct{}), make(chan error, 1)
		go func() {
			over <- client.Hold(t.Context(), "r", opts, func(ctx context.Context) error {
				close(inside)
				<-ctx.Done()
				time.Sleep(5 * time.Minute) // renewed meanwhile
				lease, _ := guard.LeaseFrom(ctx)
				return errors.Join(context.Cause(ctx), lease.(*lockclient.Lease).Err())
			})
		}()
		<-inside
		began := time.Now()
		waiting := make(chan error, 1)
		go func() { waiting <- client.Close(context.Background()) }()
		if err := <-over; !errors.Is(err, lockclient.ErrClosed) || errors.Is(err, lockclient.ErrLeaseLost) {
			t.Errorf("Hold says %v", err)
		}
		if err := <-waiting; err != nil || time.Since(began) < 5*time.Minute {
			t.Errorf("Close says %v after %v", err, time.Since(began))
		}
		if _, _, held := server.Holder("r"); held {
			t.Error("the lease was not released")
		}
		if err := client.Hold(t.Context(), "r", opts, func(context.Context) error { return nil }); !errors.Is(err, guard.ErrSetup) || !errors.Is(err, lockclient.ErrClosed) {
			t.Errorf("Hold after Close: %v", err)
		}
	})
}

// TestTryHold: it does not wait.
func TestTryHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := locktest.New(t, nil)
		opts := &lockclient.AcquireOptions{TTL: time.Minute, Metadata: "closing the books"}
		err := client.TryHold(t.Context(), "r", opts, func(context.Context) error {
			err := server.Client(t, "other", nil).TryHold(t.Context(), "r", opts, func(context.Context) error {
				t.Error("two holders")
				return nil
			})
			var held *lockclient.HeldError
			if !errors.As(err, &held) || held.Metadata != "closing the books" || held.Owner != "locktest" {
				t.Errorf("refused with %+v", err)
			}
			return nil
		})
		testkit.Check(t, err)
	})
}

// TestKeepAlive: the lease lasts without a callback until it is released, and
// Done reports a loss.
func TestKeepAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := locktest.New(t, nil)
		acquire := func() *lockclient.Lease {
			lease, err := client.TryAcquire(t.Context(), "r", &lockclient.AcquireOptions{TTL: time.Minute})
			testkit.Must(t, err)
			return lease
		}
		lease := acquire()
		if err := lease.KeepAlive(30 * time.Second); !errors.Is(err, guard.ErrInvalid) {
			t.Errorf("half of the TTL: %v", err)
		}
		testkit.Must(t, lease.KeepAlive(0))
		time.Sleep(time.Hour)
		testkit.Check(t, errors.Join(lease.Err(), lease.Release(t.Context())))
		lease = acquire()
		testkit.Must(t, lease.KeepAlive(10*time.Second))
		server.Steal("r", "thief", time.Hour)
		began := time.Now()
		<-lease.Done()
		if !errors.Is(lease.Err(), lockclient.ErrLeaseLost) || time.Since(began) > 11*time.Second {
			t.Errorf("%v after %v", lease.Err(), time.Since(began))
		}
	})
}

// TestNamespace: a client with a namespace leases names within it, joined as by guard.JoinResource, and no others.
func TestNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := locktest.New(t, &lockclient.Options{Namespace: "acme:eu"})
		lease, err := client.TryAcquire(t.Context(), "jobs:close", &lockclient.AcquireOptions{TTL: time.Minute})
		testkit.Must(t, err)
		const full = "acme%3Aeu:jobs:close"
		if claim, _, held := server.Holder(full); !held || claim != lease.Claim() || claim.Resource != full {
			t.Errorf("held %v, %+v; the claim is %+v", held, claim, lease.Claim())
		}
	})
}

// TestRenewalWithoutAnAnswer: the error says how long the client waited, unless
// the caller's context ended first.
func TestRenewalWithoutAnAnswer(t *testing.T) {
	for _, ends := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			client, err := lockclient.New(hangs{memory.NewServer().Issuer()}, "owner", &lockclient.Options{OpTimeout: time.Second})
			testkit.Must(t, err)
			defer client.Close(t.Context())
			lease, err := client.TryAcquire(t.Context(), "r", &lockclient.AcquireOptions{TTL: time.Minute})
			testkit.Must(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			if ends {
				go func() { time.Sleep(time.Millisecond); cancel() }()
			}
			if err := lease.Renew(ctx); !errors.Is(err, guard.ErrOutcomeUnknown) || strings.Contains(err.Error(), "no response within") == ends {
				t.Errorf("the context ends %v: %v", ends, err)
			}
		})
	}
}

type hangs struct{ *memory.Issuer }

func (hangs) Renew(ctx context.Context, renewals []driver.Renewal, results []driver.Renewed) {
	<-ctx.Done()
	for n := range results {
		results[n] = driver.Renewed{State: driver.Unknown, Err: guard.OutcomeUnknown("renew", renewals[n].Claim, ctx.Err())}
	}
}
