package pgadmin

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"

	"github.com/jackc/pgx/v5/pgxpool"
)

// What the controls remove from purge_leases.
const (
	theLock  = "PERFORM fencepost.lock_leases(p_wait_ms);"
	theFloor = "PERFORM fencepost.raise_floor(v_highest);"
)

// TestPurgeThenInsert: an acquire waits for the row that a purge has deleted. Its
// token is above the floor. The server's history shows what goes wrong without
// the floor.
func TestPurgeThenInsert(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, take, put string
		want            guard.Token
	}{
		{"as built", "", "", 6},
		{"without the floor", theFloor, "", 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			pool := migrated(t)
			watchPurged(t, pool)
			client := newTestClient(t, pool, nil)
			grant(t, client, "r", 5)
			if test.take != "" {
				mutate(t, pool, "purge_leases", test.take, test.put)
			}
			time.Sleep(2 * time.Millisecond)
			tx, err := pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback(context.Background())
			var count, floor int64
			if err := tx.QueryRow(t.Context(), purgeSQL, []string{"r"}, int64(1), "1000").Scan(&count, &floor); err != nil || count != 1 {
				t.Fatalf("purged %d, %v", count, err)
			}
			granted := make(chan guard.Token, 1)
			go func() {
				lease, err := client.TryAcquire(context.Background(), "r", &lockclient.AcquireOptions{TTL: time.Hour})
				if err != nil {
					t.Error(err)
					granted <- 0
					return
				}
				granted <- lease.Token()
			}()
			pgtest.Blocked(t, pool, "fencepost.acquire(", 1)
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if token := <-granted; token != test.want {
				t.Errorf("token %v after 5, want %v", token, test.want)
			}
			if _, problems := checkHistory(history(t, pool, "r")); (len(problems) > 0) != (test.take != "") {
				t.Errorf("problems: %q", problems)
			}
		})
	}
}

// TestPurgeBesideAnInsert: an acquire found no row, has read the floor and is
// about to insert, which a trigger stops here; meanwhile another's row comes and
// is free. It is not purged: without the lock it is, and the acquire starts again
// from the old floor.
func TestPurgeBesideAnInsert(t *testing.T) {
	t.Parallel()
	for _, locked := range []bool{true, false} {
		t.Run(map[bool]string{true: "as built", false: "without the lock"}[locked], func(t *testing.T) {
			pool := migrated(t)
			watchPurged(t, pool)
			mustExec(t, pool, `CREATE FUNCTION public.stop() RETURNS trigger LANGUAGE plpgsql AS
				'BEGIN IF NEW.lease_id = ''slow'' THEN PERFORM pg_advisory_xact_lock(1); END IF; RETURN NEW; END'`)
			mustExec(t, pool, "CREATE TRIGGER stop BEFORE INSERT ON fencepost.leases FOR EACH ROW EXECUTE FUNCTION public.stop()")
			if !locked {
				mutate(t, pool, "purge_leases", theLock, "")
			}
			tx, err := pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback(context.Background())
			if _, err := tx.Exec(t.Context(), "SELECT pg_advisory_xact_lock(1)"); err != nil {
				t.Fatal(err)
			}
			client := newTestClient(t, pool, nil)
			granted := make(chan guard.Token, 1)
			slow := newTestClient(t, pool, nil)
			go func() {
				lease, err := slow.TryAcquire(context.Background(), "r", &lockclient.AcquireOptions{LeaseID: "slow", TTL: time.Hour})
				if err != nil {
					t.Error(err)
					granted <- 0
					return
				}
				granted <- lease.Token()
			}()
			pgtest.Blocked(t, pool, "fencepost.acquire(", 1)
			grant(t, client, "r", 5)
			time.Sleep(2 * time.Millisecond)
			done, err := client.delete(t.Context(), []string{"r"}, time.Millisecond, 20*time.Millisecond)
			if locked != pglease.Contention(err) || locked != (done.Count == 0) {
				t.Errorf("purged %+v, %v", done, err)
			}
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if token := <-granted; token != map[bool]guard.Token{true: 6, false: 1}[locked] {
				t.Errorf("token %v after 5", token)
			}
			if _, problems := checkHistory(history(t, pool, "r")); locked != (len(problems) == 0) {
				t.Errorf("problems: %q", problems)
			}
		})
	}
}

// watchPurged records the history of leases, including changes by functions
// that set a search_path of their own.
func watchPurged(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	watchHistory(t, pool, "fencepost.leases")
	mustExec(t, pool, "ALTER FUNCTION note() SET search_path = public")
}

// TestPurgeRacesAcquire: rows are purged continuously while they are acquired
// and released, thousands of times. By the server's own history no token is
// lower than or equal to an earlier one of its resource. The controls are in
// TestPurgeThenInsert, in the order that goes wrong; here they would fail only
// by chance.
func TestPurgeRacesAcquire(t *testing.T) {
	t.Parallel()
	grants := int64(byLength(1000, 5000))
	pool := dial(t, migrated(t).Config().ConnString(), func(c *pgxpool.Config) { c.MaxConns = 12 })
	watchPurged(t, pool)
	client := newTestClient(t, pool, nil)
	keys := []string{"a", "b", "c", "d", "e", "f"}
	var granted, deleted atomic.Int64
	var purging atomic.Bool
	purging.Store(true)
	var wg, purgers sync.WaitGroup
	stop := make(chan struct{})
	purgers.Go(func() {
		defer purging.Store(false)
		for {
			select {
			case <-stop:
				return
			default:
			}
			done, err := client.delete(t.Context(), keys, 0, 100*time.Millisecond)
			if err != nil && !pglease.Contention(err) {
				t.Error(err)
				return
			}
			deleted.Add(done.Count)
		}
	})
	for i := range keys {
		wg.Go(func() {
			for granted.Load() < grants || deleted.Load() < 50 && purging.Load() {
				lease, err := client.TryAcquire(t.Context(), keys[i], &lockclient.AcquireOptions{TTL: time.Hour})
				if err == nil {
					granted.Add(1)
					err = lease.Release(t.Context())
				}
				if err != nil && !errors.Is(err, lockclient.ErrLeaseLost) {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	purgers.Wait()
	t.Logf("%d grants, %d rows purged", granted.Load(), deleted.Load())
	for _, key := range keys {
		if _, problems := checkHistory(history(t, pool, key)); len(problems) > 0 {
			t.Errorf("%s: %q", key, problems[:min(len(problems), 5)])
		}
	}
}
