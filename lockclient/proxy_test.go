package lockclient

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"
)

// warm prepares every statement on the connections in use, so that the next
// chunk from the server is the answer to a statement.
func warm(t *testing.T, c *Client) {
	t.Helper()
	for range 3 {
		lease := mustTry(t, c, "warm", time.Hour)
		testkit.Must(t, lease.Renew(t.Context()))
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// unhurried is an issuer whose exchanges end by themselves.
type unhurried struct{ *pglease.Issuer }

func (u unhurried) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	r.Timeout = testkit.Patience
	return u.Issuer.Acquire(context.WithoutCancel(ctx), r)
}

func (u unhurried) Renew(ctx context.Context, renewals []driver.Renewal, results []driver.Renewed) {
	u.Issuer.Renew(context.WithoutCancel(ctx), renewals, results)
}

func (u unhurried) Release(ctx context.Context, claim guard.Claim) (bool, error) {
	return u.Issuer.Release(context.WithoutCancel(ctx), claim)
}

// TestOutcomeUnknown: if every answer is lost, nothing is called success or
// refusal, the error names the lease, and what was granted is released once the
// network lets that through.
func TestOutcomeUnknown(t *testing.T) {
	expectNoGoroutines(t)
	direct := migrated(t)
	pool, proxy := behindProxy(t, direct.Config().ConnString())
	client := newTestClient(t, pool, nil)
	warm(t, client)
	lease := mustTry(t, client, "mine", time.Hour)
	client.issuer = unhurried{client.issuer.(*pglease.Issuer)}
	client.set.OpTimeout = time.Nanosecond // one attempt, which takes as long as it takes
	proxy.Cut.Store(1 << 40)
	if err := lease.Renew(t.Context()); !errors.Is(err, guard.ErrOutcomeUnknown) || !lease.Valid() {
		t.Errorf("renew: %v, valid %t", err, lease.Valid())
	}
	proxy.Cut.Store(0) // the renewal has used up the connections
	client.set.OpTimeout = testkit.Patience
	warm(t, client)
	client.set.OpTimeout = time.Nanosecond
	proxy.Cut.Store(1 << 40)
	_, err := client.TryAcquire(t.Context(), "r", &AcquireOptions{TTL: time.Hour})
	var failed *guard.FailedError
	if !errors.Is(err, guard.ErrOutcomeUnknown) || !errors.As(err, &failed) || failed.Claim.Resource != "r" || failed.Claim.LeaseID == "" {
		t.Fatalf("acquire: %v", err)
	}
	testkit.Eventually(t, "the server grants (the control)", func() bool {
		var n int
		err := direct.QueryRow(t.Context(), "SELECT count(*) FROM fencepost.leases WHERE resource = 'r' AND lease_id = $1", failed.Claim.LeaseID).Scan(&n)
		return err == nil && n == 1
	})
	proxy.Cut.Store(0)
	testkit.Eventually(t, "the grant that nobody got is released", func() bool { return !rowOf(t, direct, "r").Live })
	settled(client)
	client.set.OpTimeout = testkit.Patience
	if err := lease.Renew(t.Context()); err != nil {
		t.Errorf("renew after the fault: %v", err)
	}

	proxy.Cut.Store(1 << 40)
	client.set.OpTimeout = time.Nanosecond
	if err := lease.Release(t.Context()); !errors.Is(err, guard.ErrOutcomeUnknown) || lease.Valid() || lease.Err() != ErrReleased {
		t.Errorf("release: %v, valid %t, Err %v", err, lease.Valid(), lease.Err())
	}
	proxy.Cut.Store(0)
	client.set.OpTimeout = testkit.Patience
	if err := lease.Release(t.Context()); err != nil || rowOf(t, direct, "mine").Live {
		t.Errorf("released again: %v, row %+v", err, rowOf(t, direct, "mine"))
	}
}

// TestCancelledInFlight: the client waits a moment for an attempt in flight
// when its context ends, so that its outcome is known: a grant is released, a
// refusal names the holder, and the connection survives.
func TestCancelledInFlight(t *testing.T) {
	t.Parallel()
	direct := migrated(t)
	pool, proxy := behindProxy(t, direct.Config().ConnString())
	client := newTestClient(t, pool, nil)
	warm(t, client)
	holder := mustTry(t, client, "held", time.Hour)
	conns := pool.Stat().NewConnsCount()
	patient(client) // a busy machine takes longer than a moment
	// The context ends when the answer has reached the proxy.
	try := func(resource string) (*Lease, error) {
		mine := errors.New("mine")
		ctx, cancel := context.WithCancelCause(t.Context())
		end := func() { cancel(mine) }
		proxy.Answered.Store(&end)
		defer proxy.Answered.Store(nil)
		lease, err := client.TryAcquire(ctx, resource, &AcquireOptions{TTL: time.Hour})
		if ctx.Err() == nil || resource == "r" && !errors.Is(err, mine) {
			t.Errorf("the context did not end: %v", err)
		}
		return lease, err
	}
	for range 3 {
		lease, err := try("r")
		if lease != nil || !errors.Is(err, guard.ErrUnavailable) || errors.Is(err, guard.ErrOutcomeUnknown) {
			t.Errorf("got %v, %v", lease, err)
		}
		if r := rowOf(t, direct, "r"); r.Live || r.Token == 0 {
			t.Errorf("the row is %+v", r)
		}
		_, err = try("held")
		var held *HeldError
		if !errors.As(err, &held) || held.Token != holder.Token() {
			t.Errorf("got %v", err)
		}
	}
	if n := pool.Stat().NewConnsCount() - conns; n != 0 {
		t.Errorf("%d connections were lost", n)
	}
}
