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
			if err := fenced.Raise(t.Context(), claimOf("r", 6)); pgerr.State(err) != pgerr.LockTimeout {
				t.Errorf("%s: a raise got %v, want that it waits", when, err)
			}
		}
		var after context.Context
		err := fenced.plain(t.Context(), func(_ context.Context, other testTx) error {
			err := fenced.fenced(t.Context(), claim, func(ctx context.Context, own testTx) error {
				after = ctx
				if err := own.enter(ctx, claim); err != nil {
					t.Errorf("its own transaction: %v", err)
				}
				return other.enter(ctx, claim)
			})
			newer("while the other transaction is open")
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		err = fenced.plain(t.Context(), func(_ context.Context, late testTx) error {
			if err := late.enter(after, claim); err != nil {
				return err
			}
			newer("while a late transaction is open")
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		if err := fenced.Raise(t.Context(), claimOf("r", 6)); err != nil {
			t.Errorf("afterwards: %v", err)
		}
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
		if got := e.text("SELECT v || lease FROM n"); got != "0lease" {
			t.Errorf("the row is %s", got)
		}
	})
}
