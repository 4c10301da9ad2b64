package sqlfence

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/sqlfence/sqlrow"
)

// TestSchemaWithoutRows (P5, P6): after a restore of the schema without its data
// nothing enters or raises, and each error says why and what to do; so does that of
// Migrate. The way out works.
func TestSchemaWithoutRows(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.exec("TRUNCATE fencepost.lock_salt, fencepost.migrations, fencepost.marks")
		db := e.open(nil, func(*pgx.ConnConfig) {}) // sessions without plans
		never := func(context.Context, testTx) error { t.Error("the callback ran"); return nil }
		for what, err := range map[string]error{
			"Raise": db.Raise(t.Context(), claimOf("r", 5)), "InTx": db.fenced(t.Context(), claimOf("r", 5), never),
		} {
			if guard.ReasonOf(err) != guard.ReasonOther || !strings.Contains(err.Error(), "restore of the schema without its data") {
				t.Errorf("%s: %v", what, err)
			}
		}
		if err := db.Migrate(t.Context()); err == nil || !strings.Contains(err.Error(), "DROP SCHEMA fencepost") {
			t.Errorf("Migrate: %v", err)
		}
		e.exec("DROP SCHEMA fencepost CASCADE")
		must(t, db.Migrate(t.Context()))
		noError(t, e.open(nil, func(*pgx.ConnConfig) {}).Raise(t.Context(), claimOf("r", 5)), "after the way out")
	})
}

// TestKeyTrigger (P1, P9): a trigger that changes the key of a row to be inserted
// leads Upsert to no other resource's row. The control is the key that it leaves.
func TestKeyTrigger(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.exec(`CREATE TABLE n (k text PRIMARY KEY, v int, last_fencing_token bigint NOT NULL DEFAULT 0); INSERT INTO n VALUES ('b', 0, 3);
			CREATE FUNCTION low() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.k := lower(NEW.k); RETURN NEW; END';
			CREATE TRIGGER low BEFORE INSERT ON n FOR EACH ROW EXECUTE FUNCTION low()`)
		table, err := sqlrow.NewTable([]string{"n"}, []string{"k"}, template("{k}"), nil)
		must(t, err)
		if err := table.Upsert(t.Context(), e.db, claimOf("B", 9), Key{"B"}, Set{"v": 9}); guard.ReasonOf(err) != guard.ReasonSetup || !strings.Contains(err.Error(), "trigger") {
			t.Errorf("under the other claim: %v", err)
		}
		e.wantText("0 3", "the row of b", "SELECT concat(v, ' ', last_fencing_token) FROM n")
		noError(t, table.Upsert(t.Context(), e.db, claimOf("b", 4), Key{"b"}, Set{"v": 4}), "the control")
	})
}

// TestTriggerOddities (P5): a resource column that a partitioned table generates is
// refused at the installation, and tokens in another spelling at the write.
func TestTriggerOddities(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		e.exec(`CREATE TABLE parts (id int NOT NULL, k text GENERATED ALWAYS AS ('k' || id) STORED NOT NULL) PARTITION BY LIST (id);
			CREATE TABLE whole (id int NOT NULL, k text GENERATED ALWAYS AS ('k' || 1) STORED NOT NULL)`)
		install := func(table string) error {
			return e.db.InstallTrigger(t.Context(), Trigger{Table: []string{table}, Resource: template("{k}"), Columns: map[string]string{"k": "k"}})
		}
		if err := install("parts"); guard.ReasonOf(err) != guard.ReasonInvalid || !strings.Contains(err.Error(), "generated") {
			t.Errorf("a partitioned table: %v", err)
		}
		noError(t, install("whole"), "the control")
		must(t, e.db.Raise(t.Context(), claimOf("k1", 10)))
		for token, want := range map[string]guard.Reason{"010": guard.ReasonInvalid, " 10 ": guard.ReasonInvalid, "1e1": guard.ReasonInvalid,
			"9223372036854775806": guard.ReasonUnavailable, "9223372036854775807": guard.ReasonInvalid, "9999999999999999999": guard.ReasonInvalid, "10": guard.ReasonNone} {
			wantReason(t, e.db.plain(t.Context(), func(ctx context.Context, tx testTx) error {
				claims := `[{"resource":"k1","token":"` + token + `","leaseId":"lease-10"}]`
				if _, err := tx.exec(ctx, "SELECT set_config('fencepost.claims', $1, true)", claims); err != nil {
					return err
				}
				_, err := tx.exec(ctx, "INSERT INTO whole (id) VALUES (1)")
				return ErrorFrom(err)
			}), want, "token %q", token)
		}
		// The server runs it as READ COMMITTED, but no other function takes it as that.
		err := e.db.plain(t.Context(), func(ctx context.Context, tx testTx) error {
			_, err := tx.exec(ctx, `SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED;
				SELECT fencepost.present('k1', 10, 'lease-10'); INSERT INTO whole (id) VALUES (1)`)
			return ErrorFrom(err)
		})
		if pgerr.State(err) != "SF005" || !strings.Contains(err.Error(), "must be READ COMMITTED or") {
			t.Errorf("read uncommitted: %v", err)
		}
	})
}
