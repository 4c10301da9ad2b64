package sqlfence

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

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

// TestBatchOfSeveralStatements (P1, P5): a write of a batch is one statement in
// the simple protocol, too, where the server would accept several: a COMMIT
// among them would leave what follows without a fence.
func TestBatchOfSeveralStatements(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.exec("CREATE TABLE n (id int PRIMARY KEY, v text); INSERT INTO n VALUES (1, 'old')")
		db := e.open(nil, func(c *pgx.ConnConfig) { c.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol })
		for _, sql := range []string{
			"UPDATE n SET v = 'new'; COMMIT; UPDATE n SET v = 'newer'",
			"SELECT 1; ROLLBACK",
			"SELECT ';'; COMMIT",
			`SELECT 1 AS ";"; COMMIT`,
			"SELECT $$a;b$$; COMMIT",
			"SELECT $x$ $$ ; $x$; COMMIT",
			"SELECT E'\\'; '; COMMIT",
			"SELECT 1 /* ; /* ; */ */; COMMIT",
			"SELECT 1 -- ;\n; COMMIT",
			"SELECT 'open",
			"; COMMIT",
		} {
			_, err := db.Batch(t.Context(), claimOf("r", 5), Raw(sql), Raw("UPDATE n SET v = 'last'"))
			if guard.ReasonOf(err) != guard.ReasonInvalid {
				t.Errorf("%q: %v, want it to be invalid", sql, err)
			}
			if v := e.text("SELECT v FROM n"); v != "old" {
				t.Fatalf("%q wrote %q", sql, v)
			}
		}
		for _, sql := range []string{
			"SELECT ';' ; ", "SELECT $$;$$", "SELECT $$$$", "SELECT 1 AS \";\" -- ; the end", "SELECT 1 /* ; */ ;", "SELECT E'\\';' || 'x;''y'", "SELECT 1 AS a$b$c",
			"DO $do$ BEGIN PERFORM 1; END $do$;",
		} {
			if _, err := db.Batch(t.Context(), claimOf("r", 5), Raw(sql)); err != nil {
				t.Errorf("%q: %v", sql, err)
			}
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
			"Takeover": table.Takeover(t.Context(), e.db, claim, Key{1}, nil),
			"Upsert":   table.Upsert(t.Context(), e.db, claim, Key{1}, Set{"v": 1}),
		} {
			if !errors.Is(err, guard.ErrConflict) {
				t.Errorf("%s under another spelling of the lease ID: %v, want a conflict", what, err)
			}
		}
		verdicts, err := table.UpdateMany(t.Context(), e.db, []RowUpdate{{claim, Key{1}, Set{"v": 1}}})
		if err != nil || !errors.Is(verdicts[0], guard.ErrConflict) {
			t.Errorf("UpdateMany: %v, %v", verdicts, err)
		}
		if got := e.text("SELECT v || lease FROM n"); got != "0lease" {
			t.Errorf("the row is %s", got)
		}
	})
}
