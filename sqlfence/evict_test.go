package sqlfence

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
)

// TestEvictIsNarrow: a raise ends only sessions that hold this resource's lock,
// under a lower token, of the same role, for longer than the grace period.
func TestEvictIsNarrow(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.exec("CREATE TABLE written (token bigint); DROP ROLE IF EXISTS fencepost_evict_app; CREATE ROLE fencepost_evict_app; " +
			"GRANT USAGE ON SCHEMA fencepost TO fencepost_evict_app; GRANT EXECUTE ON FUNCTION fencepost.holders(text, bigint, text) TO fencepost_evict_app")
		t.Cleanup(func() { e.exec("DROP OWNED BY fencepost_evict_app; DROP ROLE fencepost_evict_app") })
		for _, resource := range []string{"r", "other"} {
			if err := e.db.Raise(t.Context(), claimOf(resource, 5)); err != nil {
				t.Fatal(err)
			}
		}
		end, endOther := e.holding(claimOf("r", 5)), e.holding(claimOf("other", 5))
		evict := func(role string, claim guard.Claim, grace time.Duration) (n int64, err error) {
			err = pgx.BeginFunc(t.Context(), e.admin, func(tx pgx.Tx) error {
				if _, err := tx.Exec(t.Context(), "SET LOCAL SESSION AUTHORIZATION "+role); err != nil {
					return err
				}
				return tx.QueryRow(t.Context(), evictSQL, claim.Resource, int64(claim.Token), claim.LeaseID, grace.Milliseconds()).Scan(&n)
			})
			return n, err
		}
		for what, c := range map[string]struct {
			role  string
			claim guard.Claim
			grace time.Duration
		}{
			"another role":       {"fencepost_evict_app", claimOf("r", 6), 0},
			"within the grace":   {"DEFAULT", claimOf("r", 6), time.Hour},
			"another resource":   {"DEFAULT", claimOf("s", 6), 0},
			"the mark's holder":  {"DEFAULT", claimOf("r", 5), 0},
			"the same in prefix": {"DEFAULT", claimOf("r ", 6), 0},
		} {
			if n, err := evict(c.role, c.claim, c.grace); err != nil || n != 0 {
				t.Errorf("%s: %d sessions, %v", what, n, err)
			}
		}
		// A newer holder that raises in its own transaction cannot be told from
		// its lock, and is not ended for an older one.
		err := entering(e.db)(t.Context(), claimOf("new", 7), func(context.Context, testTx) error {
			if n, err := evict("DEFAULT", claimOf("new", 6), 0); err != nil || n != 0 {
				t.Errorf("a newer holder: %d sessions, %v", n, err)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		for what, claim := range map[string]guard.Claim{"an older holder": claimOf("r", 4), "another lease": {Resource: "r", Token: 5, LeaseID: "x"}} {
			if _, err := evict("DEFAULT", claim, 0); pgerr.State(err) != pgerr.Stale && pgerr.State(err) != pgerr.Conflict {
				t.Errorf("%s: got %v, want a refusal", what, err)
			}
		}
		// The control: what none of these ended can be ended.
		if n, err := evict("DEFAULT", claimOf("r", 6), 0); err != nil || n != 1 {
			t.Errorf("the older holder: %d sessions, %v", n, err)
		}
		if err := end(); err == nil {
			t.Error("a session that was ended committed")
		}
		if err := endOther(); err != nil {
			t.Errorf("the other resource's holder: %v", err)
		}
	})
}

// TestEvictNotGranted: a role that may not look for holders waits as long as
// one that does not terminate, and is told both reasons.
func TestEvictNotGranted(t *testing.T) {
	bothDrivers(t, func(t *testing.T, e *env) {
		e.exec("CREATE TABLE written (token bigint)")
		if err := e.db.Raise(t.Context(), claimOf("r", 5)); err != nil {
			t.Fatal(err)
		}
		end := e.holding(claimOf("r", 5))
		e.exec("DROP FUNCTION fencepost.holders")
		start := time.Now()
		err := e.open(&Options{RaiseTimeout: 600 * time.Millisecond, TerminateAfter: 100 * time.Millisecond}).Raise(t.Context(), claimOf("r", 6))
		if took := time.Since(start); guard.ReasonOf(err) != guard.ReasonUnavailable || took < 500*time.Millisecond { // 100 ms would be the first wait alone
			t.Errorf("%v after %v", err, took)
		}
		if err := end(); err != nil {
			t.Error(err)
		}
	})
}

// TestIdleConnections: a DB on one connection does what one on a pool does, and
// refuses a connection that is in the middle of a transaction.
func TestIdleConnections(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		db, begin := e.single()
		ctx := context.Background()
		err := db.fencedAll(ctx, []guard.Claim{claimOf("r", 5)}, nil, func(ctx context.Context, tx testTx) error {
			_, err := tx.exec(ctx, "SELECT 1")
			return err
		})
		if err != nil {
			t.Errorf("InTx: %v", err)
		}
		if err := db.Raise(ctx, claimOf("r", 6)); err != nil {
			t.Errorf("Raise: %v", err)
		}
		if _, err := db.Batch(ctx, claimOf("r", 7), Write{SQL: "SELECT 1"}); err != nil {
			t.Errorf("Batch: %v", err)
		}
		if mark, err := db.Admit(ctx, claimOf("r", 8)); err != nil || mark.Token != 8 {
			t.Errorf("Admit: %+v, %v", mark, err)
		}
		e.exec("CREATE TABLE n (id int PRIMARY KEY, v int, last_fencing_token bigint NOT NULL DEFAULT 0); INSERT INTO n VALUES (1, 0)")
		table := e.table("n", []string{"id"}, &TableOptions{Rule: guard.SameOrNewer})
		many := []RowWrite{{claimOf("n", 2), Key{1}, Set{"v": 2}}}
		if err := table.Takeover(ctx, db, claimOf("n", 1), Key{1}, nil); err != nil {
			t.Errorf("Takeover: %v", err)
		}
		if verdicts, err := table.UpdateMany(ctx, db, many); err != nil || verdicts[0] != nil {
			t.Errorf("UpdateMany: %v, %v", verdicts, err)
		}
		end := begin()
		wantInvalid(t, "Takeover in a transaction", table.Takeover(ctx, db, claimOf("n", 3), Key{1}, nil), "connection", "")
		_, err = table.UpdateMany(ctx, db, many)
		wantInvalid(t, "UpdateMany in a transaction", err, "connection", "")
		wantInvalid(t, "InTx in a transaction", db.fenced(ctx, claimOf("r", 9), nil), "connection", "")
		wantInvalid(t, "Raise in a transaction", db.Raise(ctx, claimOf("r", 9)), "connection", "")
		_, err = db.Mark(ctx, "r")
		wantInvalid(t, "Mark in a transaction", err, "connection", "")
		end()
		if mark, err := db.Mark(ctx, "r"); err != nil || mark.Token != 8 {
			t.Errorf("the mark is %+v, %v", mark, err)
		}
	})
}
