package sqlfence

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/longtest"
)

// TestTakeoverLiftsCommit (P2): a takeover makes only its own commit
// synchronous: not that of a refused takeover's transaction, not the next
// one's, and it changes nothing if the setting is already stronger.
func TestTakeoverLiftsCommit(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.createDocs()
		e.exec("INSERT INTO docs VALUES (1, 'old', NULL, 4)")
		table := e.table("docs", []string{"id"}, &TableOptions{Rule: guard.SameOrNewer})
		for setting, want := range map[string]string{"off": "on", "local": "on", "remote_write": "remote_write", "on": "on"} {
			db := e.serverDefault("synchronous_commit", setting)
			is := func(ctx context.Context, tx testTx, want string) {
				n, err := tx.int(ctx, "SELECT count(*) FROM pg_settings WHERE name = 'synchronous_commit' AND setting = $1", want)
				if err != nil || n != 1 {
					t.Errorf("default %s: the setting is not %s, %v", setting, want, err)
				}
			}
			noError(t, db.plain(t.Context(), func(ctx context.Context, tx testTx) error {
				wantReason(t, table.Raise(ctx, tx.in(), claimOf("r", 3), Key{1}, nil), guard.ReasonStale, "the old holder")
				is(ctx, tx, setting)
				err := table.Raise(ctx, tx.in(), claimOf("r", 5), Key{1}, nil)
				is(ctx, tx, want)
				return err
			}))
			noError(t, table.Raise(t.Context(), db, claimOf("r", 5), Key{1}, nil))
			noError(t, db.plain(t.Context(), func(ctx context.Context, tx testTx) error { is(ctx, tx, setting); return nil }))
		}
	})
}

// TestTakeoverInTx (P2): until the transaction of a takeover ends, an older
// holder's write waits; then it is refused, or applied if it was rolled back.
func TestTakeoverInTx(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.createDocs()
		e.exec("INSERT INTO docs VALUES (1, 'old', NULL, 4)")
		table := e.table("docs", []string{"id"}, &TableOptions{Rule: guard.SameOrNewer})
		rollback := errors.New("rolled back")
		for _, c := range []struct {
			end  error
			want guard.Reason
			row  string
		}{{rollback, guard.ReasonNone, "by 4"}, {nil, guard.ReasonStale, "by 4, then 5"}} {
			written := make(chan error, 1)
			err := e.db.plain(t.Context(), func(ctx context.Context, tx testTx) error {
				var v string
				if err := table.Raise(ctx, tx.in(), claimOf("r", 5), Key{1}, Dest{"v": &v}); err != nil {
					return err
				}
				go func() {
					written <- table.Update(context.Background(), e.db, claimOf("r", 4), Key{1}, Set{"v": "by 4"})
				}()
				e.waitForBlocked(1)
				return errors.Join(c.end, table.Update(ctx, tx.in(), claimOf("r", 5), Key{1}, Set{"v": v + ", then 5"}))
			})
			if !errors.Is(err, c.end) {
				t.Errorf("the transaction: %v", err)
			}
			if err := <-written; guard.ReasonOf(err) != c.want {
				t.Errorf("the older holder got %v, want %q", err, c.want)
			}
			e.wantText(c.row, "the row", "SELECT v FROM docs")
		}
	})
}

// TestUpsertRaces (P1): holders that insert one row at the same time leave the
// newest one's, and a physically deleted row loses its mark, which is why
// Delete keeps it.
func TestUpsertRaces(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		e.createDocs()
		table := e.table("docs", []string{"id"}, &TableOptions{DeletedColumn: "deleted_at"})
		for id := range longtest.ByLength(20, 300) {
			const holders = 6
			verdicts := make(chan error, holders)
			for token := 1; token <= holders; token++ {
				go func() {
					verdicts <- table.Upsert(t.Context(), e.db, guard.Claim{Resource: "r", Token: guard.Token(token)}, Key{id}, Set{"v": fmt.Sprint(token)})
				}()
			}
			for range holders {
				if err := <-verdicts; err != nil && !errors.Is(err, guard.ErrStale) {
					t.Error(err)
				}
			}
		}
		e.wantInt(0, "rows are not the newest holder's", "SELECT count(*) FROM docs WHERE last_fencing_token <> 6 OR v <> '6'")
		old, newer := claimOf("r", 7), claimOf("r", 8)
		must(t, table.Delete(t.Context(), e.db, newer, Key{0}, nil))
		wantReason(t, table.Upsert(t.Context(), e.db, old, Key{0}, Set{"v": "back"}), guard.ReasonStale, "a tombstone")
		e.exec("DELETE FROM docs WHERE id = 0") // the control
		noError(t, table.Upsert(t.Context(), e.db, old, Key{0}, Set{"v": "back"}), "a row that is gone remembers")
	})
}

// TestEndedTx (P5): in a transaction that has ended already, nothing is sent.
func TestEndedTx(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.createDocs()
		e.exec("INSERT INTO docs VALUES (1, 'old')")
		table := e.table("docs", []string{"id"}, &TableOptions{Rule: guard.SameOrNewer})
		claim, key, set := claimOf("r", 5), Key{1}, Set{"v": "new"}
		for way, call := range map[string]func(q Querier) error{
			"Update":   func(q Querier) error { return table.Update(t.Context(), q, claim, key, set) },
			"Upsert":   func(q Querier) error { return table.Upsert(t.Context(), q, claim, key, set) },
			"Takeover": func(q Querier) error { return table.Raise(t.Context(), q, claim, key, nil) },
		} {
			e.db.plain(t.Context(), func(_ context.Context, tx testTx) error {
				noError(t, tx.end(true))
				wantReason(t, call(tx.in()), guard.ReasonUnavailable, "%s", way)
				return nil
			})
		}
		e.wantText("old", "the row", "SELECT v FROM docs")
	})
}
