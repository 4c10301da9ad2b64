package lockclient

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

// TestLeaseAfterClose: a lease outside of Hold ends at its deadline, and cannot be
// kept alive any more.
func TestLeaseAfterClose(t *testing.T) {
	for name, kept := range map[string]bool{"kept alive": true, "not kept": false} {
		testkit.Bubble(t, name, func(t *testing.T) {
			i := &answering{}
			client := i.client(t, nil)
			lease := mustTry(t, client, "r", time.Minute)
			if kept {
				testkit.Must(t, lease.KeepAlive(0))
			}
			left := lease.Remaining()
			testkit.Must(t, client.Close(t.Context()))
			if err := lease.KeepAlive(0); !errors.Is(err, guard.ErrSetup) || !errors.Is(err, ErrClosed) {
				t.Errorf("KeepAlive: %v", err)
			}
			began := time.Now()
			select {
			case <-lease.Done():
			case <-time.After(time.Hour):
			}
			if took := time.Since(began); took != left || !errors.Is(lease.Err(), ErrLeaseLost) || i.renewals() != 0 {
				t.Errorf("Done after %v of %v, %v, %d renewals", took, left, lease.Err(), i.renewals())
			}
		})
	}
}

// TestCloseStopsAbandoned: a release that nobody waits for, and that fails, holds up
// Close for Options.OpTimeout.
func TestCloseStopsAbandoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := &answering{
			acquire: func(_ context.Context, r driver.Request) (driver.Grant, error) {
				return driver.Grant{}, guard.OutcomeUnknown("acquire", r.Claim(), errSimulated)
			},
			release: func(context.Context, guard.Claim) (bool, error) {
				return false, guard.Unavailable("release", guard.Claim{}, errSimulated)
			},
		}
		client := i.client(t, &Options{OpTimeout: 7 * time.Second})
		_, err := client.TryAcquire(t.Context(), "r", &AcquireOptions{TTL: 3 * time.Hour})
		failure(t, err, guard.ErrOutcomeUnknown, "r", errSimulated)
		began := time.Now()
		if err := client.Close(t.Context()); err != nil || time.Since(began) != 7*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// TestReleaseDuringClose: a Release whose answer was lost is repeated to its end
// before the issuer is closed.
func TestReleaseDuringClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := &answering{}
		client := i.client(t, nil)
		lease := mustTry(t, client, "r", time.Minute)
		closed := make(chan error, 1)
		i.release = func(_ context.Context, claim guard.Claim) (bool, error) {
			if i.closed > 0 {
				return false, guard.Unavailable("release", claim, ErrClosed)
			}
			if len(i.released) == 1 {
				go func() { closed <- client.Close(context.Background()) }()
				synctest.Wait()
				return false, guard.OutcomeUnknown("release", claim, errSimulated)
			}
			return true, nil
		}
		if err := lease.Release(t.Context()); err != nil || len(i.released) != 2 {
			t.Errorf("%v after %d attempts", err, len(i.released))
		}
		testkit.Check(t, <-closed)
	})
}

// TestLeaseOfClosedKeeper: a lease that a Close that did not wait has overtaken ends
// at its deadline.
func TestLeaseOfClosedKeeper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := (&answering{}).client(t, nil)
		client.keeper.close()
		lease := mustTry(t, client, "r", time.Minute)
		began, left := time.Now(), lease.Remaining()
		if <-lease.Done(); time.Since(began) != left {
			t.Errorf("Done after %v of %v", time.Since(began), left)
		}
	})
}

// TestCloseGivesUp: once its context has ended, Close leaves no renewal in flight.
func TestCloseGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, ended := make(chan struct{}), make(chan time.Time, 1)
		i := &answering{}
		i.renew = func(ctx context.Context, renewals []driver.Renewal, results []driver.Renewed) {
			close(began)
			<-ctx.Done()
			ended <- time.Now()
			results[0] = driver.Renewed{Err: guard.OutcomeUnknown("renew", renewals[0].Claim, errSimulated)}
		}
		client := i.client(t, nil)
		go client.Hold(context.Background(), "r", &AcquireOptions{TTL: time.Hour, RenewInterval: time.Second}, func(context.Context) error { time.Sleep(2 * time.Second); return nil })
		<-began
		closing, cancel := context.WithCancel(t.Context())
		cancel()
		at := time.Now()
		if err := client.Close(closing); !errors.Is(err, guard.ErrUnavailable) {
			t.Errorf("Close: %v", err)
		}
		if end := <-ended; end != at {
			t.Errorf("the renewal went on for %v after Close", end.Sub(at))
		}
		time.Sleep(time.Minute)
	})
}

// TestCloseInsideHold: a Hold's function that closes its client does not wait for itself
// without end: not at all with the context that it got, and else ten minutes.
func TestCloseInsideHold(t *testing.T) {
	for _, own := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			client := (&answering{}).client(t, nil)
			start := time.Now()
			err := client.Hold(t.Context(), "r", &AcquireOptions{TTL: time.Hour}, func(ctx context.Context) error {
				if !own {
					ctx = context.Background()
				}
				return client.Close(ctx)
			})
			want, after := ErrClosed, time.Duration(0)
			if !own {
				want, after = errCloseTimeout, closeTimeout
			}
			if took := time.Since(start); !errors.Is(err, guard.ErrUnavailable) || !errors.Is(err, want) || took != after {
				t.Errorf("its own context %t: Close after %v: %v", own, took, err)
			}
			if err := client.Close(t.Context()); err != nil {
				t.Errorf("closed again, outside: %v", err)
			}
		})
	}
}

// TestReleaseAfterClose: a Release that comes when the issuer is closed already frees
// its lease through the caller's pool. The control is a lease that nobody releases.
func TestReleaseAfterClose(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	client := newTestClient(t, pool, nil)
	released, chosen := mustTry(t, client, "released", time.Hour), mustTry(t, client, "left", time.Hour)
	testkit.Must(t, client.Close(t.Context()))
	testkit.Check(t, released.Release(t.Context()))
	for _, l := range []*Lease{released, chosen} {
		var held bool
		if err := pool.QueryRow(t.Context(), "SELECT lease_id IS NOT NULL FROM fencepost.leases WHERE resource = $1", l.Resource()).Scan(&held); err != nil || held != (l == chosen) {
			t.Errorf("%s: held %t, %v", l.Resource(), held, err)
		}
	}
}
