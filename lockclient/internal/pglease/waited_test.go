package pglease_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/pglock"
)

// TestGrantAfterAWait: whether a lease is over is decided by the clock after the
// wait for its row. Here the lease is granted and ends while the statement waits,
// so the start time of its transaction is before both.
func TestGrantAfterAWait(t *testing.T) {
	t.Parallel()
	const asBuilt, early = "THEN u.now ELSE clock_timestamp() END)\n      AND u.not_after", "THEN u.now ELSE now() END)\n      AND u.not_after"
	granted := func(t *testing.T, over string) bool {
		pool := pgtest.Pool(t)
		exec := func(sql string) {
			t.Helper()
			if _, err := pool.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
		testkit.Must(t, pglock.Migrate(t.Context(), pool))
		var acquire string
		testkit.Must(t, pool.QueryRow(t.Context(), "SELECT pg_get_functiondef('fencepost.acquire'::regproc)").Scan(&acquire))
		if !strings.Contains(acquire, asBuilt) && !strings.Contains(acquire, early) {
			t.Fatal("the function has another condition")
		}
		exec(strings.Replace(acquire, asBuilt, over, 1))
		exec("INSERT INTO fencepost.leases (resource, token) VALUES ('r', 1)")
		tx, err := pool.Begin(t.Context())
		testkit.Must(t, err)
		defer tx.Rollback(context.Background())
		if _, err := tx.Exec(t.Context(), "SELECT FROM fencepost.leases WHERE resource = 'r' FOR UPDATE"); err != nil {
			t.Fatal(err)
		}
		got := make(chan int64, 1)
		go func() {
			var granted int64
			err := pool.QueryRow(context.Background(), `SELECT count(*) FILTER (WHERE o_granted)
				FROM fencepost.acquire($1, $2, $3, $4, $5, $6, $7, $8, $9, NULL, 'fencepost.leases'::regclass::oid::bigint)`, []string{"r"}, []string{"late"}, []string{"o"}, []string{""}, []int64{60e6},
				[]time.Time{time.Now().Add(time.Hour)}, []bool{false}, "process", "60000").Scan(&granted)
			testkit.Check(t, err)
			got <- granted
		}()
		pgtest.Blocked(t, pool, "fencepost.acquire(", 1)
		if _, err := tx.Exec(t.Context(), `UPDATE fencepost.leases SET token = 2, lease_id = 'short', acquired_at = clock_timestamp(),
			expires_at = clock_timestamp() + interval '20 milliseconds' WHERE resource = 'r'`); err != nil {
			t.Fatal(err)
		}
		exec("SELECT pg_sleep(0.03)")
		testkit.Must(t, tx.Commit(t.Context()))
		return <-got == 1
	}
	t.Run("as built", func(t *testing.T) {
		if !granted(t, asBuilt) {
			t.Error("a lease that ended during the wait was not granted")
		}
	})
	t.Run("control", func(t *testing.T) {
		if granted(t, early) {
			t.Error("the control was granted: the schedule shows nothing")
		}
	})
}
