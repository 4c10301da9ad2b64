package lockclient

import (
	"context"
	"errors"
	"sync"
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
