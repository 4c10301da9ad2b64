package lockclient

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// TestAcquireWaits: for a release and for an expiry.
func TestAcquireWaits(t *testing.T) {
	pool := migrated(t)
	holder, waiter := newTestClient(t, pool, nil), newTestClient(t, pool, nil)
	opts := &AcquireOptions{TTL: time.Minute}

	lease := mustTry(t, holder, "released", time.Minute)
	time.AfterFunc(150*time.Millisecond, func() { lease.Release(context.Background()) })
	began := time.Now()
	next, err := waiter.Acquire(t.Context(), "released", opts)
	if err != nil {
		t.Fatal(err)
	}
	if next.Token() <= lease.Token() || time.Since(began) < 150*time.Millisecond {
		t.Errorf("token %v after %v, having waited %v", next.Token(), lease.Token(), time.Since(began))
	}

	lease = mustTry(t, holder, "expired", 200*time.Millisecond)
	expires := rowOf(t, pool, "expired").ExpiresAt
	next, err = waiter.Acquire(t.Context(), "expired", opts)
	if err != nil {
		t.Fatal(err)
	}
	if next.AcquiredAt().Before(expires) || next.AcquiredAt().Sub(expires) > time.Second {
		t.Errorf("granted %v after the expiry", next.AcquiredAt().Sub(expires))
	}
}

// TestAcquireEnds: a wait that ctx ends says why, and who has the lease.
func TestAcquireEnds(t *testing.T) {
	pool := migrated(t)
	holder := mustTry(t, newTestClient(t, pool, nil), "r", time.Minute)
	client := newTestClient(t, pool, nil)
	check := func(err, cause error) {
		t.Helper()
		var held *HeldError
		if !errors.Is(err, cause) || !errors.Is(err, ErrHeld) || !errors.As(err, &held) || held.Token != holder.Token() {
			t.Errorf("got %v", err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Millisecond)
	defer cancel()
	_, err := client.Acquire(ctx, "r", &AcquireOptions{TTL: time.Minute})
	check(err, context.DeadlineExceeded)

	mine := errors.New("mine")
	caused, cancelCause := context.WithCancelCause(t.Context())
	time.AfterFunc(60*time.Millisecond, func() { cancelCause(mine) })
	_, err = client.Acquire(caused, "r", &AcquireOptions{TTL: time.Minute})
	check(err, mine)

	time.AfterFunc(60*time.Millisecond, client.Close)
	_, err = client.Acquire(t.Context(), "r", &AcquireOptions{TTL: time.Minute})
	check(err, guard.ErrUnavailable)
	if r := rowOf(t, pool, "r"); *r.LeaseID != holder.ID() {
		t.Errorf("the row is %+v", r)
	}
}

// TestAcquireCancelledAnytime: whenever ctx ends, there is a lease, or none is
// left behind, or the outcome is called unknown.
func TestAcquireCancelledAnytime(t *testing.T) {
	expectNoGoroutines(t)
	pool := migrated(t)
	client := newTestClient(t, pool, nil)
	mustTry(t, client, "warm", time.Minute)
	granted, refused, unknown := 0, 0, 0
	for i := range 300 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*5*time.Microsecond)
		lease, err := client.TryAcquire(ctx, "r", &AcquireOptions{TTL: time.Minute})
		cancel()
		switch {
		case err == nil:
			granted++
			if err := lease.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
		case errors.Is(err, guard.ErrOutcomeUnknown):
			unknown++
			var failed *guard.FailedError
			if !errors.As(err, &failed) || failed.Claim.LeaseID == "" || failed.Claim.Resource != "r" {
				t.Fatalf("no lease ID in %v", err)
			}
		case errors.Is(err, guard.ErrUnavailable) && errors.Is(err, context.DeadlineExceeded):
			refused++
			if countRows(t, pool) > 1 && rowOf(t, pool, "r").Live {
				t.Fatalf("said %v and holds %+v", err, rowOf(t, pool, "r"))
			}
		default:
			t.Fatal(err)
		}
		eventually(t, "nothing is held", func() bool { return countRows(t, pool) == 1 || !rowOf(t, pool, "r").Live })
	}
	t.Logf("granted %d, nothing written %d, unknown %d", granted, refused, unknown)
	if granted == 0 || refused == 0 {
		t.Error("the cases were not all met")
	}
}
