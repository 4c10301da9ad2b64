package pglease_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"
)

// TestGrantAfterAWait: whether a lease is over is asked of the clock after the
// wait for its row. The lease here is granted and ends while the statement waits,
// so the time at which its transaction began is before both.
func TestGrantAfterAWait(t *testing.T) {
	granted := func(t *testing.T, statement string) bool {
		pool := pgtest.Pool(t)
		exec := func(sql string) {
			t.Helper()
			if _, err := pool.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
		if err := lockclient.Migrate(t.Context(), pool); err != nil {
			t.Fatal(err)
		}
		exec("INSERT INTO fencepost.leases (resource, token) VALUES ('r', 1)")
		tx, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(context.Background())
		if _, err := tx.Exec(t.Context(), "SELECT FROM fencepost.leases WHERE resource = 'r' FOR UPDATE"); err != nil {
			t.Fatal(err)
		}
		got := make(chan int64, 1)
		go func() {
			tag, err := pool.Exec(context.Background(), statement, []string{"r"}, []string{"late"}, []string{"o"}, []string{""}, []int64{60e6},
				[]time.Time{time.Now().Add(time.Hour)}, []bool{false}, "process", "60000")
			if err != nil {
				t.Error(err)
			}
			got <- tag.RowsAffected()
		}()
		for waiting := 0; waiting != 1; time.Sleep(2 * time.Millisecond) {
			err := pool.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'").Scan(&waiting)
			if err != nil {
				t.Fatal(err)
			}
		}
		if _, err := tx.Exec(t.Context(), `UPDATE fencepost.leases SET token = 2, lease_id = 'short', acquired_at = clock_timestamp(),
			expires_at = clock_timestamp() + interval '20 milliseconds' WHERE resource = 'r'`); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Millisecond)
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		return <-got == 1
	}
	t.Run("as built", func(t *testing.T) {
		if !granted(t, pglease.AcquireSQL) {
			t.Error("a lease that ended during the wait was not granted")
		}
	})
	t.Run("control", func(t *testing.T) {
		const over, early = "OR l.expires_at <= clock_timestamp())", "OR l.expires_at <= now())"
		if !strings.Contains(pglease.AcquireSQL, over) && !strings.Contains(pglease.AcquireSQL, early) {
			t.Fatal("the statement has another condition")
		}
		if granted(t, strings.Replace(pglease.AcquireSQL, over, early, 1)) {
			t.Error("the control was granted: the schedule shows nothing")
		}
	})
}
