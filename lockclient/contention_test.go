package lockclient

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"

	"github.com/jackc/pgx/v5/pgxpool"
)

// TestRowLocked: a statement that waits for the row gives up at lock_timeout,
// so that its outcome is known.
func TestRowLocked(t *testing.T) {
	pool := migrated(t)
	client := newTestClient(t, pool, &Options{OpTimeout: patience, LockTimeout: 50 * time.Millisecond})
	lease := mustTry(t, client, "r", time.Minute)
	mustTry(t, client, "free", time.Minute).Release(t.Context())
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), "SELECT FROM fencepost.leases FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	_, tried := client.TryAcquire(t.Context(), "free", &AcquireOptions{TTL: time.Minute})
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
		_, err := client.Acquire(context.Background(), "free", &AcquireOptions{TTL: time.Minute})
		acquired <- err
	}()
	go func() { released <- lease.Release(context.Background()) }()
	eventually(t, "both are refused twice", func() bool { return refusals.acquires.Load() > 1 && refusals.releases.Load() > 1 })
	if len(acquired) > 0 || len(released) > 0 {
		t.Error("one of them did not wait")
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
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

// TestRaceForFreeRow: of several acquires that all saw the row free and wait
// for its lock, one is granted. The control omits the statement's condition,
// which is checked again under the lock, and grants to all.
func TestRaceForFreeRow(t *testing.T) {
	const underLock = `AND (l.lease_id IS NULL AND (u.waiting AND l.kept_for <> p_process AND l.expires_at > clock_timestamp() - interval '100 ms') IS NOT TRUE
           OR l.lease_id = u.lease_id AND l.owner = u.owner AND l.expires_at > clock_timestamp()
           OR l.lease_id IS NOT NULL AND l.expires_at <= CASE WHEN l.lease_id = u.lease_id AND l.owner = u.owner THEN u.now ELSE clock_timestamp() END)
`
	race := func(t *testing.T, look string) (granted int) {
		pool := dial(t, migrated(t).Config().ConnString(), func(c *pgxpool.Config) { c.MaxConns = 8 })
		alter(t, pool, "acquire", underLock, look)
		mustExec(t, pool, "INSERT INTO fencepost.leases (resource, token) VALUES ('r', 1)")
		tx, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(context.Background())
		if _, err := tx.Exec(t.Context(), "SELECT FROM fencepost.leases FOR UPDATE"); err != nil {
			t.Fatal(err)
		}
		got := make(chan bool)
		for i := range 4 {
			go func() {
				var token int64
				err := pool.QueryRow(context.Background(), grantSQL, grantArgs("r", fmt.Sprint("lease ", i), time.Minute)...).Scan(&token)
				if err != nil {
					t.Error(err)
				}
				got <- token > 0
			}()
		}
		waiting(t, pool, 4)
		tx.Rollback(t.Context())
		for range 4 {
			if <-got {
				granted++
			}
		}
		return granted
	}
	t.Run("as built", func(t *testing.T) {
		if n := race(t, underLock+" "); n != 1 {
			t.Errorf("%d of 4 were granted", n)
		}
	})
	t.Run("control", func(t *testing.T) {
		if n := race(t, ""); n != 4 {
			t.Errorf("%d of 4 were granted", n)
		}
	})
}

// TestLeaseIDOfAnotherOwnerThatRanOut (P4): an acquire that found the row free
// waits for its lock; meanwhile another owner is granted the lease under the same
// ID, and that lease runs out. The second owner gets a token of its own. The
// control does not compare owners and gives it the first one's.
func TestLeaseIDOfAnotherOwnerThatRanOut(t *testing.T) {
	const byOwner = "l.lease_id = u.lease_id AND l.owner = u.owner AND l.expires_at > u.now"
	granted := func(t *testing.T, compares string) (token int64) {
		pool := dial(t, migrated(t).Config().ConnString(), func(c *pgxpool.Config) { c.MaxConns = 8 })
		alter(t, pool, "acquire", "token = CASE WHEN "+byOwner, "token = CASE WHEN "+compares)
		mustExec(t, pool, "INSERT INTO fencepost.leases (resource, token) VALUES ('r', 1)")
		tx, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(context.Background())
		if _, err := tx.Exec(t.Context(), "UPDATE fencepost.leases SET token = 2, lease_id = 'shared', owner = 'first', expires_at = clock_timestamp() + interval '1 hour'"); err != nil {
			t.Fatal(err)
		}
		got := make(chan int64, 1)
		go func() {
			var token int64
			if err := pool.QueryRow(context.Background(), grantSQL, grantArgs("r", "shared", time.Minute)...).Scan(&token); err != nil {
				t.Error(err)
			}
			got <- token
		}()
		waiting(t, pool, 1)
		if _, err := tx.Exec(t.Context(), "UPDATE fencepost.leases SET expires_at = clock_timestamp()"); err != nil { // after the other's moment
			t.Fatal(err)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		return <-got
	}
	if token := granted(t, byOwner+" "); token != 3 {
		t.Errorf("the second owner has token %d", token)
	}
	if token := granted(t, strings.Replace(byOwner, " AND l.owner = u.owner", "", 1)); token != 2 {
		t.Errorf("the control: token %d", token)
	}
}
