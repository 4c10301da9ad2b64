package lockclient

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"
)

// TestRowLocked: a statement that waits for the row gives up at lock_timeout,
// so that its outcome is known.
func TestRowLocked(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	client := newTestClient(t, pool, nil)
	client.issuer.(*pglease.Issuer).LockTimeout = 50 * time.Millisecond
	lease := mustTry(t, client, "r", time.Hour)
	mustTry(t, client, "free", time.Hour).Release(t.Context())
	tx, err := pool.Begin(t.Context())
	testkit.Must(t, err)
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), "SELECT FROM fencepost.leases FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	_, tried := client.TryAcquire(t.Context(), "free", &AcquireOptions{TTL: time.Hour})
	for what, err := range map[string]error{"acquire": tried, "renew": lease.Renew(t.Context())} {
		if pg := pglease.Error(err); !errors.Is(err, guard.ErrUnavailable) || pg == nil || pg.Code != "55P03" {
			t.Errorf("%s: %v", what, err)
		}
	}
	if !lease.Valid() {
		t.Error("a failed renewal ended the lease")
	}
	// Acquire and Release wait it out: they are refused until the row is
	// unlocked.
	refusals := &refusals{Issuer: client.issuer}
	client.issuer = refusals
	acquired, released := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := client.Acquire(context.Background(), "free", &AcquireOptions{TTL: time.Hour})
		acquired <- err
	}()
	go func() { released <- lease.Release(context.Background()) }()
	testkit.Eventually(t, "both are refused twice", func() bool { return refusals.acquires.Load() > 1 && refusals.releases.Load() > 1 })
	if len(acquired) > 0 || len(released) > 0 {
		t.Error("one of them did not wait")
	}
	testkit.Must(t, tx.Rollback(t.Context()))
	if err := <-acquired; err != nil {
		t.Errorf("acquire: %v", err)
	}
	if err := <-released; err != nil {
		t.Errorf("release: %v", err)
	}
}

// refusals counts the requests that lock_timeout ended.
type refusals struct {
	driver.Issuer
	acquires, releases atomic.Int64
}

func (r *refusals) Acquire(ctx context.Context, req driver.Request) (driver.Grant, error) {
	g, err := r.Issuer.Acquire(ctx, req)
	if errors.Is(err, driver.ErrBusy) {
		r.acquires.Add(1)
	}
	return g, err
}

func (r *refusals) Release(ctx context.Context, claim guard.Claim) (bool, error) {
	freed, err := r.Issuer.Release(ctx, claim)
	if errors.Is(err, driver.ErrBusy) {
		r.releases.Add(1)
	}
	return freed, err
}

// TestLockedReleasesDelayNoRenewal: releases that wait for locked rows leave
// connections to the renewals of other leases. (P7)
func TestLockedReleasesDelayNoRenewal(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	client := newTestClient(t, pool, nil)
	healthy := mustTry(t, client, "healthy", time.Hour)
	var leases []*Lease
	for n := range 12 {
		leases = append(leases, mustTry(t, client, fmt.Sprint("locked ", n), time.Hour))
	}
	if err := healthy.Renew(t.Context()); err != nil { // from now on releases use the issuer's own connections
		t.Fatal(err)
	}
	tx, err := pool.Begin(t.Context())
	testkit.Must(t, err)
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), "SELECT FROM fencepost.leases WHERE resource LIKE 'locked %' FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var releases sync.WaitGroup
	for _, l := range leases {
		releases.Go(func() { l.Release(ctx) })
	}
	pgtest.Blocked(t, pool, "fencepost.release(", 2)
	for range 5 {
		time.Sleep(50 * time.Millisecond) // more of them would come by then
		testkit.Check(t, healthy.Renew(t.Context()))
		pgtest.Blocked(t, pool, "fencepost.release(", 2)
	}
	cancel()
	tx.Rollback(context.Background())
	releases.Wait()
}

// TestSpoiltLine: a release is carried out although somebody has written what cannot
// be notified into the line of waiters, and an acquire although the row's times are
// infinite.
func TestSpoiltLine(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	client := newTestClient(t, pool, nil)
	for _, id := range []string{"", "chosen"} {
		lease, err := client.TryAcquire(t.Context(), "r"+id, &AcquireOptions{TTL: time.Hour, LeaseID: id})
		testkit.Must(t, err)
		mustExec(t, pool, "UPDATE fencepost.leases SET wake_until = clock_timestamp() + interval '50 s', waiters = ARRAY[repeat('x', 10000)], acquired_at = 'infinity' WHERE resource = $1", lease.Resource())
		if _, err := client.TryAcquire(t.Context(), lease.Resource(), &AcquireOptions{TTL: time.Hour}); !errors.Is(err, ErrHeld) {
			t.Errorf("another acquire: %v", err)
		}
		if _, err := client.TryAcquire(t.Context(), lease.Resource(), &AcquireOptions{TTL: time.Hour, LeaseID: lease.ID()}); err != nil {
			t.Errorf("the holder's own: %v", err)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Errorf("release: %v", err)
		}
	}
}
