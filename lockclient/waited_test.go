package lockclient

import (
	"context"
	"strings"
	"testing"
	"time"
)

// TestGrantAfterAWait: whether a lease is over is asked of the clock after the
// wait for its row. The lease here is granted and runs out while the statement
// waits, so the time at which its transaction began is before both.
func TestGrantAfterAWait(t *testing.T) {
	granted := func(t *testing.T, statement string) bool {
		pool := migrated(t)
		mustExec(t, pool, "INSERT INTO fencepost.leases (resource, token) VALUES ('r', 1)")
		tx, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(context.Background())
		if _, err := tx.Exec(t.Context(), "SELECT FROM fencepost.leases FOR UPDATE"); err != nil {
			t.Fatal(err)
		}
		got := make(chan int64, 1)
		go func() {
			tag, err := pool.Exec(context.Background(), statement, "r", "late", "o", int64(60e6), "60000")
			if err != nil {
				t.Error(err)
			}
			got <- tag.RowsAffected()
		}()
		eventually(t, "it waits for the row", func() bool {
			var waiting int
			err := pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&waiting)
			return err == nil && waiting == 1
		})
		if _, err := tx.Exec(t.Context(), `UPDATE fencepost.leases SET token = 2, lease_id = 'short', acquired_at = clock_timestamp(),
			expires_at = clock_timestamp() + interval '20 milliseconds'`); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Millisecond)
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		return <-got == 1
	}
	t.Run("as built", func(t *testing.T) {
		if !granted(t, acquireSQL) {
			t.Error("a lease that ran out during the wait was not granted")
		}
	})
	t.Run("control", func(t *testing.T) {
		const over, early = "OR l.expires_at <= clock_timestamp()\nRETURNING", "OR l.expires_at <= now()\nRETURNING"
		if !strings.Contains(acquireSQL, over) && !strings.Contains(acquireSQL, early) {
			t.Fatal("the statement has another condition")
		}
		if granted(t, strings.Replace(acquireSQL, over, early, 1)) {
			t.Error("by the time before the wait it was over, too")
		}
	})
}
