package lockclient

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/waiting"

	"github.com/jackc/pgx/v5/pgxpool"
)

// expiresIn makes a lease run out soon, and returns when. It is not granted with
// that short a TTL because a slow machine would not get it at all.
func expiresIn(t testing.TB, pool *pgxpool.Pool, resource string, d time.Duration) (expires time.Time) {
	t.Helper()
	err := pool.QueryRow(t.Context(), `UPDATE fencepost.leases SET expires_at = clock_timestamp() + $2::bigint * interval '1 microsecond'
		WHERE resource = $1 RETURNING expires_at`, resource, d.Microseconds()).Scan(&expires)
	testkit.Must(t, err)
	return expires
}

// TestAcquireCancelledAnytime: whenever ctx ends, there is a lease, or none is
// left behind, or the outcome is reported as unknown.
func TestAcquireCancelledAnytime(t *testing.T) {
	expectNoGoroutines(t)
	pool := migrated(t)
	client := newTestClient(t, pool, nil)
	mustTry(t, client, "warm", time.Minute)
	granted, refused, unknown, inARow := 0, 0, 0, 0
	// Each try gets a little more time than the one before, until it succeeds
	// repeatedly even on a busy machine.
	for d := time.Duration(0); inARow < 10 && d < testkit.Patience; d += 5*time.Microsecond + d/50 {
		// A separate resource: an unknown grant may last up to its TTL, since
		// the release may have overtaken it.
		resource := fmt.Sprint("r", d)
		ctx, cancel := context.WithTimeout(t.Context(), d)
		lease, err := client.TryAcquire(ctx, resource, &AcquireOptions{TTL: time.Minute})
		cancel()
		if inARow++; err != nil {
			inARow = 0
		}
		switch {
		case err == nil:
			granted++
			testkit.Must(t, lease.Release(t.Context()))
		case errors.Is(err, guard.ErrOutcomeUnknown):
			unknown++
			var failed *guard.FailedError
			if !errors.As(err, &failed) || failed.Claim.LeaseID == "" || failed.Claim.Resource != resource {
				t.Fatalf("no lease ID in %v", err)
			}
			continue
		case errors.Is(err, guard.ErrUnavailable) && (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, driver.ErrLate)):
			refused++
		default:
			t.Fatal(err)
		}
		var live int
		if pool.QueryRow(t.Context(), `SELECT count(*) FROM fencepost.leases WHERE resource = $1 AND lease_id IS NOT NULL`, resource).Scan(&live) != nil || live != 0 {
			t.Fatalf("said %v and holds %+v", err, rowOf(t, pool, resource))
		}
	}
	t.Logf("granted %d, nothing written %d, unknown %d", granted, refused, unknown)
	if granted == 0 || refused == 0 {
		t.Error("the cases were not all met")
	}
}

// TestAcquireOutrun: a caller that does not wait is told after some attempts
// that others come first each time; one that waits goes on.
func TestAcquireOutrun(t *testing.T) {
	i := &answering{simulation: simulation{driver.Now}}
	i.acquire = func(_ context.Context, r driver.Request) (driver.Grant, error) {
		if n, _, _ := i.counts(); n <= 3*waiting.MaxRaces+1 {
			return driver.Grant{}, &HeldError{Resource: r.Resource} // others come first, and their lease has run out by now
		}
		return driver.Grant{Token: 7, From: i.Now(), TTL: r.TTL}, nil
	}
	c := i.client(t, nil)
	if _, err := c.TryAcquire(t.Context(), "r", &AcquireOptions{TTL: time.Minute}); !errors.Is(err, guard.ErrUnavailable) || !errors.Is(err, errRaced) {
		t.Errorf("without waiting: %v", err)
	}
	lease, err := c.Acquire(t.Context(), "r", &AcquireOptions{TTL: time.Minute})
	if err != nil {
		t.Fatalf("waiting: %v", err)
	}
	if lease.Token() != 7 {
		t.Errorf("the token is %v", lease.Token())
	}
}
