package lockclient

import (
	"context"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/pglock"

	"github.com/jackc/pgx/v5/pgxpool"
)

// TestPlansUseTheIndex: plans that were made while the table was known to be tiny
// do not read all of it after it has grown: with 10,000 rows as with three, the
// functions of an issuer start no table scan, and read few rows through an index.
// The controls, in each of which one function may choose its plan, start a table
// scan with three rows, or join the whole index to the requested resources.
func TestPlansUseTheIndex(t *testing.T) {
	t.Parallel()
	scans := func(t *testing.T, control string, joins bool) (n, read int64) {
		pool := dial(t, migrated(t).Config().ConnString(), func(c *pgxpool.Config) { c.MaxConns = 1 })
		mustExec(t, pool, "ALTER TABLE fencepost.leases SET (autovacuum_enabled = off)")
		mustExec(t, pool, "ALTER TABLE fencepost.spent SET (autovacuum_enabled = off)")
		mustExec(t, pool, "INSERT INTO fencepost.leases (resource, token) SELECT 'few ' || i, 1 FROM generate_series(1, 3) i")
		mustExec(t, pool, "INSERT INTO fencepost.spent (resource, lease_id) VALUES ('few 1', 'x')")
		mustSimple(t, pool, "ANALYZE fencepost.leases, fencepost.spent")
		switch {
		case joins:
			mustSimple(t, pool, "DO $$ BEGIN EXECUTE replace(pg_get_functiondef('fencepost."+control+"'::regproc), 'l.resource = ANY (p_resources)', 'true'); END $$")
		case control != "":
			mustExec(t, pool, "ALTER FUNCTION fencepost."+control+" RESET enable_seqscan")
		}
		all := func() {
			t.Helper()
			tx, err := pool.Begin(t.Context())
			testkit.Must(t, err)
			defer tx.Rollback(t.Context())
			both, ids, tokens := []string{"few 1", "few 2"}, []string{"a", "b"}, []int64{2, 2}
			for _, s := range []struct {
				sql  string
				args []any
			}{
				{grantSQL, grantArgs("few 1", "a", time.Hour)},
				{grantSQL, grantArgs("few 2", "b", time.Hour)},
				{grantSQL, grantArgs("few 2", "c", time.Hour)}, // refused
				{"SELECT FROM fencepost.watch('few 1', 'd', 'p', '1000')", nil},
				{"SELECT FROM fencepost.watch('few 1', '', 'p', '1000')", nil},
				{"SELECT FROM fencepost.renew($1, $2, $3, '{1000, 1000}', '1000')", []any{both[:1], ids[:1], tokens[:1]}},
				{"SELECT FROM fencepost.renew($1, $2, $3, '{1000, 1000}', '1000')", []any{both, ids, tokens}},
				{"SELECT FROM fencepost.release($1, $2, $3, '{x, y}', '1000')", []any{both, ids, tokens}},
				{"SELECT FROM fencepost.spend('few 1', 'a', 'x', '1000')", nil},
			} {
				if _, err := tx.Exec(t.Context(), s.sql, s.args...); err != nil {
					t.Fatal(s.sql, err)
				}
			}
			err = tx.QueryRow(t.Context(), `SELECT pg_stat_get_xact_numscans('fencepost.leases'::regclass) + pg_stat_get_xact_numscans('fencepost.spent'::regclass),
				pg_stat_get_xact_tuples_fetched('fencepost.leases_pkey'::regclass)`).Scan(&n, &read)
			testkit.Must(t, err)
		}
		all() // makes the plans
		if control != "" && !joins {
			return n, read
		}
		mustExec(t, pool, "INSERT INTO fencepost.leases (resource, token) SELECT 'a key ' || i, 1 FROM generate_series(1, 10000) i")
		mustExec(t, pool, "INSERT INTO fencepost.spent (resource, lease_id) SELECT 'a key ' || i, 'x' FROM generate_series(1, 1000) i")
		all()
		return n, read
	}
	if n, read := scans(t, "", false); n != 0 || read > 100 {
		t.Errorf("%d scans of a whole table, %d rows read by an index", n, read)
	}
	for _, control := range []string{"acquire", "renew", "release", "watch", "spend"} {
		if n, _ := scans(t, control, false); n == 0 {
			t.Errorf("%s, the control, scans nothing", control)
		}
	}
	for _, control := range []string{"acquire", "renew", "release"} {
		if _, read := scans(t, control, true); read < 10000 {
			t.Errorf("%s, the control, reads %d rows", control, read)
		}
	}
}

// TestSpentIDsAreNotRead: a release under a lease ID of the caller's own reads none of the
// IDs spent on its resource in the last hour, and deletes a bounded number of those whose
// hour has passed. The control has no index of their ends.
func TestSpentIDsAreNotRead(t *testing.T) {
	t.Parallel()
	read := func(t *testing.T, control bool) (rows, left int64) {
		pool := dial(t, migrated(t).Config().ConnString(), func(c *pgxpool.Config) { c.MaxConns = 1 })
		if control {
			mustExec(t, pool, "DROP INDEX fencepost.spent_until")
		}
		mustExec(t, pool, "INSERT INTO fencepost.spent (resource, lease_id) SELECT 'r', 'job-' || i FROM generate_series(1, 10000) i")
		mustExec(t, pool, "INSERT INTO fencepost.spent (resource, lease_id, until) SELECT 'r', 'old-' || i, now() FROM generate_series(1, 150) i")
		mustSimple(t, pool, "VACUUM ANALYZE fencepost.spent")
		tx, err := pool.Begin(t.Context())
		testkit.Must(t, err)
		defer tx.Rollback(t.Context())
		if _, err := tx.Exec(t.Context(), "SELECT FROM fencepost.spend('r', 'mine', 'x', '1000')"); err != nil {
			t.Fatal(err)
		}
		err = tx.QueryRow(t.Context(), `SELECT sum(pg_stat_get_xact_tuples_returned(oid) + pg_stat_get_xact_tuples_fetched(oid)),
			(SELECT count(*) FROM fencepost.spent WHERE lease_id LIKE 'old-%')
			FROM pg_class WHERE oid = 'fencepost.spent'::regclass OR oid IN (SELECT indexrelid FROM pg_index WHERE indrelid = 'fencepost.spent'::regclass)`).Scan(&rows, &left)
		testkit.Must(t, err)
		return rows, left
	}
	if rows, left := read(t, false); rows > 1000 || left != 50 {
		t.Errorf("%d rows and entries read, %d of 150 that are over are left, want 50", rows, left)
	}
	if rows, _ := read(t, true); rows < 10000 {
		t.Errorf("the control reads %d rows and entries", rows)
	}
}

// TestPollingWaiter: a waiter that polls asks about once a second, and takes its process
// out of no queue, in which it never was.
func TestPollingWaiter(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	mustExec(t, pool, "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET track_functions = ''all''', current_database()); END $$")
	pool.Reset()
	calls := func(function string) (n int) {
		err := pool.QueryRow(t.Context(), `SELECT coalesce(sum(calls), 0) FROM pg_stat_user_functions
			WHERE schemaname = 'fencepost' AND funcname = $1`, function).Scan(&n)
		testkit.Must(t, err)
		return n
	}
	mustTry(t, newTestClient(t, pool, nil), "r", time.Hour)
	client := newTuned(t, pool, pglock.Options{Poll: true}, nil)
	count := &counting{Issuer: client.issuer}
	client.issuer = count
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { _, err := client.Acquire(ctx, "r", nil); over <- err }()
	testkit.Eventually(t, "twelve tries", func() bool { return count.attempts.Load() >= 12 })
	cancel()
	<-over
	time.Sleep(300 * time.Millisecond) // it would leave a queue by then
	testkit.Must(t, client.Close(t.Context()))
	pool.Reset() // sessions say what they called when they end
	testkit.Eventually(t, "the counts of the sessions", func() bool { return calls("acquire") >= 12 })
	if n := calls("unwatch") + calls("watch"); n != 0 {
		t.Errorf("%d calls for a queue in which it is not", n)
	}
}
