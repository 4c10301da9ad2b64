package pgtest

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/internal/testkit"
)

// Blocked waits until n sessions of the database wait for a lock in a statement that
// contains text, and returns their process IDs. Name the statement as exactly as needed:
// what an earlier step left behind may be waiting too.
func Blocked(t testing.TB, on interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}, text string, n int) (pids []int32) {
	t.Helper()
	testkit.Eventually(t, "sessions that wait for a lock in "+text, func() bool {
		rows, err := on.Query(context.Background(), `SELECT pid FROM pg_stat_activity WHERE datname = current_database()
			AND wait_event_type = 'Lock' AND pid <> pg_backend_pid() AND strpos(query, $1) > 0 ORDER BY query_start`, text)
		if err != nil {
			return false
		}
		pids, err = pgx.CollectRows(rows, pgx.RowTo[int32])
		return err == nil && len(pids) == n
	})
	return pids
}
