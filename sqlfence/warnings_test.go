package sqlfence

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/internal/pgtest"
)

// TestCancelledStandbyWait (P5): a COMMIT whose wait for the synchronous standby is
// cancelled ends in a warning only, and the standby may not have it. On connections
// that are watched the outcome of every call is unknown; the control is the same call
// on others, which is a success. A warning before the COMMIT is not taken for it.
func TestCancelledStandbyWait(t *testing.T) {
	t.Parallel()
	server, err := pgtest.Start(t.Context(), nil)
	must(t, err)
	t.Cleanup(func() { server.Stop() })
	for driver := range openers {
		t.Run(openers[driver].driver, func(t *testing.T) {
			e := newEnvOn(t, driver, server)
			e.createWritten()
			e.exec("CREATE TABLE docs (id int PRIMARY KEY, v text, last_fencing_token bigint NOT NULL DEFAULT 0); INSERT INTO docs VALUES (1, 'old'); CREATE VIEW seen AS TABLE docs")
			noticed := 0
			watched := e.open(nil, func(c *pgx.ConnConfig) {
				c.OnNotice = func(*pgconn.PgConn, *pgconn.Notice) { noticed++ }
				WatchWarnings(c)
			})
			err := watched.fenced(t.Context(), claimOf("r", 5), func(ctx context.Context, tx testTx) error {
				_, err := tx.exec(ctx, "ANALYZE seen") // a WARNING of 01000: a view cannot be analyzed
				return err
			})
			if err != nil || noticed != 1 {
				t.Errorf("%v after %d notices", err, noticed)
			}
			for _, sql := range []string{"ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "SELECT pg_reload_conf()"} {
				must(t, e.db.unfenced(t.Context(), sql))
			}
			e.waitFor("the setting", "SELECT current_setting('synchronous_standby_names') = 'nobody'")
			ctx, cancel := context.WithCancel(context.Background())
			cancelled := make(chan struct{})
			var waits atomic.Int64
			go func() { // a person at psql, who cancels each statement once
				defer close(cancelled)
				for done := []string{}; ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
					rows, _ := e.admin.Query(context.Background(), `WITH waiting AS MATERIALIZED (SELECT pid, concat(pid, ' ', query_start) AS id FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND concat(pid, ' ', query_start) <> ALL ($1))
						SELECT id FROM waiting WHERE pg_cancel_backend(pid)`, done)
					more, _ := pgx.CollectRows(rows, pgx.RowTo[string])
					done = append(done, more...)
					waits.Add(int64(len(more)))
				}
			}()
			for waits.Load() == 0 { // until the checkpointer knows the setting, commits do not wait
				e.exec("UPDATE docs SET v = 'old'")
			}
			defer func() {
				e.exec("ALTER SYSTEM RESET synchronous_standby_names")
				e.exec("SELECT pg_reload_conf()")
				cancel()
				<-cancelled
			}()
			table := e.table("docs", []string{"id"}, &TableOptions{Rule: guard.SameOrNewer})
			for _, c := range []struct {
				what string
				call func(db fence) error
			}{
				{"Raise", func(db fence) error { return db.Raise(t.Context(), claimOf("raised", 5)) }},
				{"Admit", func(db fence) error { _, err := db.Admit(t.Context(), claimOf("admitted", 5)); return err }},
				{"InTx", func(db fence) error { return db.fenced(t.Context(), claimOf("r", 5), write5) }},
				{"InTx that may resolve", func(db fence) error {
					return db.fencedAll(t.Context(), []guard.Claim{claimOf("r", 5)}, &TxOptions{Resolve: true}, write5)
				}},
				{"Update", func(db fence) error { return table.Update(t.Context(), db, claimOf("1", 5), Key{1}, Set{"v": "new"}) }},
				{"Table.Raise", func(db fence) error { return table.Raise(t.Context(), db, claimOf("1", 6), Key{1}, nil) }},
				{"Reset", func(db fence) error {
					return db.Reset(t.Context(), "r", guard.Mark{Token: 5, LeaseID: "lease-5"}, guard.Mark{Token: 4}, 9, "op", "why")
				}},
			} {
				for _, on := range []struct {
					db   fence
					want error
				}{{watched, pgerr.ErrUnreplicated}, {e.db, nil}} {
					e.exec("BEGIN; SET LOCAL synchronous_commit = local; TRUNCATE fencepost.marks; DELETE FROM written; UPDATE docs SET last_fencing_token = 0; COMMIT")
					e.putMark("r", guard.Mark{Token: 5, LeaseID: "lease-5"})
					err := c.call(on.db)
					if !errors.Is(err, on.want) || on.want != nil && guard.ReasonOf(err) != guard.ReasonOutcomeUnknown {
						t.Errorf("%s: got %v, want %v", c.what, err, on.want)
					}
				}
			}
			if noticed < 2 {
				t.Error("the caller's own handler got no notice of the waits")
			}
		})
	}
}
