package lockadmin

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"

	"github.com/jackc/pgx/v5/pgxpool"
)

// What the controls remove from purge_leases.
const (
	theLock  = "PERFORM fencepost.lock_leases(p_wait_ms);"
	theFloor = "PERFORM fencepost.raise_floor(v_highest);"
)

// TestPurgeThenInsert is the order that breaks a purge without the lock: an
// acquire has read the floor and waits for the row that a purge has deleted. The
// server's history shows what goes wrong without the lock and without the floor.
func TestPurgeThenInsert(t *testing.T) {
	for _, test := range []struct {
		name, take, put string
		want            guard.Token
	}{
		{"as built", "", "", 6},
		{"without the lock", theLock, "", 1},
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
				lease, err := client.TryAcquire(context.Background(), "r", &lockclient.AcquireOptions{TTL: time.Minute})
				if err != nil {
					t.Error(err)
					granted <- 0
					return
				}
				granted <- lease.Token()
			}()
			waiting(t, pool, 1)
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
