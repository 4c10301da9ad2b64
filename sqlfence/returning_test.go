package sqlfence

import (
	"context"
	"errors"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/sqlfence/sqlrow"
)

// TestReturning: Update and Upsert read the row as they wrote it; a refusal
// reads nothing and has its reason, and a dest that does not fit its column is
// an unknown outcome outside a transaction and an error inside one.
func TestReturning(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.exec("CREATE TABLE n (id int PRIMARY KEY, v int, w text DEFAULT 'd', last_fencing_token bigint NOT NULL DEFAULT 0); INSERT INTO n VALUES (1, 40, 'a', 3)")
		table, ctx := e.table("n", []string{"id"}, nil), t.Context()
		var v int
		var w string
		dest := Dest{"w": &w, "v": &v}
		if err := table.Update(ctx, e.db, claimOf("r", 5), Key{1}, Set{"v": sqlrow.Raw("v + $1", 2)}, dest); err != nil || v != 42 || w != "a" {
			t.Errorf("update: %v, %d, %q", err, v, w)
		}
		if err := table.Upsert(ctx, e.db, claimOf("r", 5), Key{2}, Set{"v": 7}, dest); err != nil || v != 7 || w != "d" {
			t.Errorf("insert: %v, %d, %q", err, v, w)
		}
		if err := table.Upsert(ctx, e.db, claimOf("r", 6), Key{2}, Set{"v": 8}, dest); err != nil || v != 8 {
			t.Errorf("upsert: %v, %d", err, v)
		}
		v = -1
		if err := table.Update(ctx, e.db, claimOf("r", 4), Key{1}, Set{"v": 1}, dest); !errors.Is(err, guard.ErrStale) || v != -1 {
			t.Errorf("stale: %v, %d", err, v)
		}
		wantInvalid(t, "two dests", table.Update(ctx, e.db, claimOf("r", 7), Key{1}, Set{"v": 1}, dest, dest), "dest", "2")
		wantInvalid(t, "no pointer", table.Update(ctx, e.db, claimOf("r", 7), Key{1}, Set{"v": 1}, Dest{"v": 1}), "dest column v", "int")
		wrong := Dest{"w": &v}
		if err := table.Update(ctx, e.db, claimOf("r", 7), Key{1}, Set{"v": 1}, wrong); guard.ReasonOf(err) != guard.ReasonOutcomeUnknown {
			t.Errorf("a dest that does not fit: %v", err)
		}
		err := e.db.plain(ctx, func(ctx context.Context, tx testTx) error {
			return table.Update(ctx, tx.in(), claimOf("r", 8), Key{1}, Set{"v": 1}, wrong)
		})
		if guard.ReasonOf(err) != guard.ReasonOther {
			t.Errorf("the same in a transaction: %v", err)
		}
	})
}
