package sqlfence

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
)

// TestSchemaMissing: without schema fencepost everything that needs it returns
// ErrSetup and says what to do, and a table of the application still works.
func TestSchemaMissing(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		saysMigrate := func(what string, err error) {
			t.Helper()
			if guard.ReasonOf(err) != guard.ReasonSetup || !strings.Contains(err.Error(), "sqladmin's Migrate") {
				t.Errorf("%s: got %v, want ErrSetup that says to run Migrate", what, err)
			}
		}
		e.exec("DROP TABLE fencepost.marks") // as if only half of the schema existed
		saysMigrate("without the table", e.db.Raise(t.Context(), claimOf("r", 1)))
		e.exec("DROP SCHEMA fencepost CASCADE")
		for what, call := range e.calls(e.db, claimOf("r", 1), "InTx", "Raise", "Admit", "Mark", "Retire", "Verify", "Triggers", "RemoveTrigger") {
			saysMigrate(what, call(t.Context()))
		}
		saysMigrate("InstallTrigger", e.db.InstallTrigger(t.Context(), triggerOn([]string{"pg_class"}, `x`)))
		e.createPairs()
		e.exec("INSERT INTO pairs (a, b) VALUES (1, 'x')")
		noError(t, e.calls(e.db, claimOf("r", 5))["Update"](t.Context()), "a single statement")
		must(t, e.db.Migrate(t.Context()))
		noError(t, e.db.Raise(t.Context(), claimOf("r", 1)), "after Migrate")
	})
}

// TestNested: InTx inside InTx of the same DB would be another transaction. It
// is refused, even if another DB's InTx is in between, and raises no mark.
func TestNested(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		other, never := e.open(nil), func(context.Context, testTx) error { t.Error("the callback ran"); return nil }
		must(t, e.db.fenced(t.Context(), claimOf("a", 1), func(ctx context.Context, tx testTx) error {
			wantInvalid(t, "nested", e.db.fenced(ctx, claimOf("b", 1), never), "InTx", `"b"`)
			return other.fenced(ctx, claimOf("c", 1), func(ctx context.Context, tx testTx) error {
				wantInvalid(t, "nested in another's", e.db.fenced(ctx, claimOf("b", 1), never), "InTx", `"b"`)
				return nil
			})
		}))
		e.wantInt(0, "a refused call raised the mark", "SELECT count(*) FROM fencepost.marks WHERE resource = 'b'")
	})
}

// TestTokenColumnType: a mark of a type that rounds admits an older token, and
// one that is too short stops a holder after the first failover, so only bigint
// is accepted, also as a domain, before anything is written.
func TestTokenColumnType(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.exec("CREATE DOMAIN mark AS bigint CHECK (VALUE >= 0)")
		for kind, good := range map[string]bool{"bigint": true, "mark": true, "real": false, "double precision": false, "numeric": false, "integer": false, "smallint": false} {
			e.exec(`DROP TABLE IF EXISTS marked; CREATE TABLE marked (id int PRIMARY KEY, v text, "the ""mark""" ` + kind + ` NOT NULL DEFAULT 0); INSERT INTO marked VALUES (1, 'old')`)
			for _, in := range []string{"", " in a transaction"} {
				table := e.table("marked", []string{"id"}, &TableOptions{TokenColumn: `the "mark"`, Rule: guard.SameOrNewer})
				update := func(q Querier, token guard.Token) error {
					return table.Update(t.Context(), q, claimOf("1", token), Key{1}, Set{"v": "new"})
				}
				if in == "" {
					db := e.single() // no statement is prepared
					newer, older := update(db, 1<<40+9), update(db, 1<<40+2)
					if good {
						if newer != nil || !errors.Is(older, guard.ErrStale) {
							t.Errorf("%s: %v, then %v", kind, newer, older)
						}
						continue
					}
					wantInvalid(t, kind, newer, `token column the "mark"`, kind)
				} else if !good {
					err := e.db.plain(t.Context(), func(_ context.Context, tx testTx) error { return update(tx.in(), 1<<40+9) })
					wantInvalid(t, kind+in, err, `token column the "mark"`, kind)
				}
			}
			if n := e.int("SELECT count(*) FROM marked WHERE v = 'old'"); n != 1 != good {
				t.Errorf("%s: %d rows are old", kind, n)
			}
		}
	})
}

// TestErrorsNameTheOperation (P6): the error of a write says which one it was.
func TestErrorsNameTheOperation(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		e.exec(`CREATE TABLE docs (id int PRIMARY KEY, v text, deleted_at timestamptz, last_fencing_token bigint NOT NULL DEFAULT 0); INSERT INTO docs VALUES (1, 'old');
			CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$;
			CREATE TRIGGER fail BEFORE INSERT OR UPDATE ON docs EXECUTE FUNCTION fail()`)
		table, claim, key := e.table("docs", []string{"id"}, &TableOptions{Rule: guard.SameOrNewer, DeletedColumn: "deleted_at"}), claimOf("1", 5), Key{1}
		for want, call := range map[string]func() error{
			"update docs":            func() error { return table.Update(t.Context(), e.db, claim, key, Set{"v": "new"}) },
			"upsert into docs":       func() error { return table.Upsert(t.Context(), e.db, claim, key, Set{"v": "new"}) },
			"delete from docs":       func() error { return table.Delete(t.Context(), e.db, claim, key, nil) },
			"raise the mark in docs": func() error { return table.Raise(t.Context(), e.db, claim, key, nil) },
		} {
			if err := call(); err == nil || !strings.Contains(err.Error(), want+": ") {
				t.Errorf("%q is not in the error %v", want, err)
			}
		}
	})
}
