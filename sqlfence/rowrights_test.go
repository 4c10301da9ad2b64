package sqlfence

import (
	"context"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
)

// TestRowSecurity (P5, P6): on a table with row-level security and rights by
// column a row that the role may not write is never success and never stale; a
// row that it may not see does not exist. No rights are needed except on the
// named columns, the key and the fence's columns.
func TestRowSecurity(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		role, db := e.as("rls")
		e.exec(`CREATE TABLE docs (id int PRIMARY KEY, tenant text NOT NULL DEFAULT 'mine', v int, secret int,
				last_fencing_token bigint NOT NULL DEFAULT 0, lease text NOT NULL DEFAULT '', deleted_at timestamptz);
			INSERT INTO docs (id, tenant) VALUES (1, 'mine'), (2, 'shown'), (3, 'hidden'), (4, 'mine');
			ALTER TABLE docs ENABLE ROW LEVEL SECURITY;
			CREATE POLICY sees ON docs FOR SELECT USING (tenant <> 'hidden');
			CREATE POLICY writes ON docs FOR UPDATE USING (tenant = 'mine');
			CREATE POLICY adds ON docs FOR INSERT WITH CHECK (tenant = 'mine');
			GRANT SELECT (id, v, last_fencing_token, lease, deleted_at), UPDATE (v, last_fencing_token, lease, deleted_at),
				INSERT (id, v, last_fencing_token, lease) ON docs TO ` + role)
		table := e.table("docs", []string{"id"}, &TableOptions{Rule: guard.SameOrNewer, LeaseColumn: "lease", DeletedColumn: "deleted_at"})
		var v *int
		ways := []struct {
			name string
			call func(id int) error
		}{
			{"Update", func(id int) error { return table.Update(t.Context(), db, claimOf("r", 5), Key{id}, Set{"v": 1}) }},
			{"Takeover", func(id int) error {
				return table.Raise(t.Context(), db, claimOf("r", 5), Key{id}, Dest{"v": &v})
			}},
			{"Upsert", func(id int) error { return table.Upsert(t.Context(), db, claimOf("r", 5), Key{id}, Set{"v": 1}) }},
			{"Delete", func(id int) error { return table.Delete(t.Context(), db, claimOf("r", 5), Key{id}, nil) }},
		}
		for id, want := range map[int]guard.Reason{1: guard.ReasonNone, 2: guard.ReasonSetup, 3: guard.ReasonNotFound} {
			for _, way := range ways {
				expect := want
				if way.name == "Upsert" && id > 1 { // it is in the way of the row to be inserted, and the server says so
					expect = guard.ReasonSetup
				}
				wantReason(t, way.call(id), expect, "%s of row %d", way.name, id)
			}
		}
		noError(t, table.Upsert(t.Context(), db, claimOf("r", 5), Key{9}, Set{"v": 1}), "Upsert of a new row")
		if err := table.Update(t.Context(), db, claimOf("r", 5), Key{4}, Set{"secret": 1}); guard.ReasonOf(err) != guard.ReasonSetup || pgerr.State(err) != "42501" || strings.Contains(err.Error(), "RolesSQL") {
			t.Errorf("a column without the right: %v", err)
		}
		e.exec("CREATE TRIGGER quiet BEFORE UPDATE ON docs FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()")
		if err := table.Update(t.Context(), db, claimOf("r", 5), Key{9}, Set{"v": 1}); guard.ReasonOf(err) != guard.ReasonSetup || !strings.Contains(err.Error(), "suppress_redundant") {
			t.Errorf("an update that changes nothing, under a trigger that leaves it out: %v", err)
		}
		noError(t, table.Update(t.Context(), db, claimOf("r", 5), Key{9}, Set{"v": 2}), "an update that changes something under that trigger")
		e.exec("CREATE POLICY stays ON docs AS RESTRICTIVE FOR UPDATE WITH CHECK (v < 100)")
		if err := table.Update(t.Context(), db, claimOf("r", 6), Key{4}, Set{"v": 100}); guard.ReasonOf(err) != guard.ReasonSetup || pgerr.State(err) != "42501" || !strings.Contains(err.Error(), "policies") {
			t.Errorf("a row that a policy's WITH CHECK refuses: %v", err)
		}
		err := db.fenced(t.Context(), claimOf("r", 6), func(context.Context, testTx) error { return nil })
		if guard.ReasonOf(err) != guard.ReasonSetup || !strings.Contains(err.Error(), "RolesSQL") {
			t.Errorf("InTx without rights on schema fencepost: %v", err)
		}
		e.wantText("1 5, 2 0, 3 0, 4 0, 9 5", "the marks are", "SELECT string_agg(id || ' ' || last_fencing_token, ', ' ORDER BY id) FROM docs")
	})
}

// TestRowMovesBetweenPartitions (P1): a row that a write moves into another
// partition keeps its mark, and a write that meets it while it moves is neither
// a success nor stale.
func TestRowMovesBetweenPartitions(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		e.exec(`CREATE TABLE docs (id int, year int NOT NULL, v int, last_fencing_token bigint NOT NULL DEFAULT 0) PARTITION BY LIST (year);
			CREATE TABLE docs_25 PARTITION OF docs FOR VALUES IN (25);
			CREATE TABLE docs_26 PARTITION OF docs FOR VALUES IN (26);
			INSERT INTO docs VALUES (1, 25)`)
		table := e.table("docs", []string{"id"}, &TableOptions{Rule: guard.SameOrNewer})
		must(t, table.Update(t.Context(), e.db, claimOf("r", 6), Key{1}, Set{"year": 26}))
		wantReason(t, table.Update(t.Context(), e.db, claimOf("r", 5), Key{1}, Set{"year": 25}), guard.ReasonStale, "an older holder moves it back")
		noError(t, table.Update(t.Context(), e.db, claimOf("r", 7), Key{1}, Set{"year": 25}))
		for _, way := range []func() error{
			func() error { return table.Update(t.Context(), e.db, claimOf("r", 8), Key{1}, Set{"v": 8}) },
		} {
			tx, err := e.admin.Begin(t.Context())
			must(t, err)
			if _, err := tx.Exec(t.Context(), "UPDATE docs SET year = 51 - year WHERE id = 1"); err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- way() }()
			e.waitFor("the write to wait", "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()")
			must(t, tx.Commit(t.Context()))
			if err := <-done; guard.ReasonOf(err) != guard.ReasonUnavailable || pgerr.State(err) != pgerr.Serialization {
				t.Errorf("a write that met the move: %v", err)
			}
		}
		e.wantInt(7, "the mark", "SELECT last_fencing_token FROM docs WHERE id = 1 AND v IS NULL")
	})
}
