package sqlfence

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
)

// TestEnterAnotherTransaction (P1, P5): Enter in a callback of InTx skips only
// the transaction of that InTx. Another transaction, which may outlive it, is
// fenced separately; so is one that is entered with the callback's context
// after InTx is over.
func TestEnterAnotherTransaction(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		claim := claimOf("r", 5)
		fenced := e.open(&Options{LockTimeout: 100 * time.Millisecond, RaiseTimeout: 100 * time.Millisecond, TerminateAfter: -1})
		newer := func(when string) {
			t.Helper()
			wantState(t, fenced.Raise(t.Context(), claimOf("r", 6)), pgerr.LockTimeout, "%s: a raise", when)
		}
		var after context.Context
		must(t, fenced.plain(t.Context(), func(_ context.Context, other testTx) error {
			err := fenced.fenced(t.Context(), claim, func(ctx context.Context, own testTx) error {
				after = ctx
				noError(t, own.enter(ctx, claim), "its own transaction")
				return other.enter(ctx, claim)
			})
			newer("while the other transaction is open")
			return err
		}))
		noError(t, fenced.plain(t.Context(), func(_ context.Context, late testTx) error {
			if err := late.enter(after, claim); err != nil {
				return err
			}
			newer("while a late transaction is open")
			return nil
		}))
		noError(t, fenced.Raise(t.Context(), claimOf("r", 6)), "afterwards")
	})
}

// TestLeaseCollation (P4): lease IDs on a table are compared byte by byte,
// whatever collation their column has.
func TestLeaseCollation(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		e.exec(`CREATE COLLATION fold (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
			CREATE TABLE n (id int PRIMARY KEY, v int NOT NULL, last_fencing_token bigint NOT NULL DEFAULT 0, lease text COLLATE fold NOT NULL DEFAULT '');
			INSERT INTO n VALUES (1, 0, 5, 'lease')`)
		table := e.table("n", []string{"id"}, &TableOptions{LeaseColumn: "lease", Rule: guard.SameOrNewer})
		claim := guard.Claim{Resource: "r", Token: 5, LeaseID: "LEASE"}
		for what, err := range map[string]error{
			"Update":   table.Update(t.Context(), e.db, claim, Key{1}, Set{"v": 1}),
			"Takeover": table.Raise(t.Context(), e.db, claim, Key{1}, nil),
			"Upsert":   table.Upsert(t.Context(), e.db, claim, Key{1}, Set{"v": 1}),
		} {
			if !errors.Is(err, guard.ErrConflict) {
				t.Errorf("%s under another spelling of the lease ID: %v, want a conflict", what, err)
			}
		}
		e.wantText("0lease", "the row", "SELECT v || lease FROM n")
	})
}
