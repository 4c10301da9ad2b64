package sqlfence

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
)

// testRoles are of this test alone: roles belong to the whole cluster.
func (e *env) testRoles(t *testing.T) *RoleNames {
	suffix := "_" + strings.ReplaceAll(e.text("SELECT current_database()"), "-", "_")
	suffix = suffix[max(0, len(suffix)-40):]
	r := &RoleNames{Enforcer: "enforcer" + suffix, Operator: "oper'a\\tor" + suffix, Reader: `read"er` + suffix}
	t.Cleanup(func() {
		for _, name := range []string{r.Enforcer, r.Operator, r.Reader} {
			quoted := pgx.Identifier{name}.Sanitize()
			e.exec("DROP OWNED BY " + quoted + "; DROP ROLE " + quoted)
		}
	})
	return r
}

// TestRoles (P1): what the application's role must not be able to do gets
// 42501, each thing with the control that a superuser can; what it needs, it can.
func TestRoles(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		e.guardWriters()
		roles := e.testRoles(t)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if err := e.db.MigrateRoles(context.Background(), roles); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		role := "fencepost_member_" + e.driver
		db := e.as(t, role)
		e.exec(fmt.Sprintf("GRANT %s TO %s; GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON items, parts, whole TO %s", pgx.Identifier{roles.Enforcer}.Sanitize(), role, role))

		if err := db.Raise(t.Context(), claimOf("a", 6)); err != nil {
			t.Error(err)
		}
		err := db.fenced(t.Context(), claimOf("a", 6), func(ctx context.Context, tx testTx) error {
			_, err := tx.exec(ctx, "UPDATE items SET v = 9 WHERE id = 1")
			return err
		})
		if err != nil {
			t.Error(err)
		}
		err = ErrorFrom(db.plain(t.Context(), func(ctx context.Context, tx testTx) error {
			if err := tx.present(ctx, claimOf("a", 5)); err != nil {
				return err
			}
			_, err := tx.exec(ctx, "UPDATE items SET v = 9 WHERE id = 1")
			return err
		}))
		if guard.ReasonOf(err) != guard.ReasonStale {
			t.Errorf("got %v", err)
		}
		function := "fencepost." + e.text("SELECT fencepost.guard_name('public', 'items')")
		for _, sql := range []string{
			"UPDATE fencepost.marks SET token = 1", "DELETE FROM fencepost.marks", "INSERT INTO fencepost.marks VALUES ('x', 1)", "TRUNCATE fencepost.marks",
			"SELECT 1 FROM fencepost.marks",
			"DELETE FROM fencepost.guarded", "UPDATE fencepost.migrations SET name = 'x'",
			"SELECT fencepost.retire('infinity', 1000)",
			"ALTER TABLE items DISABLE TRIGGER fencepost_update", "ALTER TABLE items DISABLE TRIGGER ALL", "DROP TRIGGER fencepost_update ON items",
			"ALTER TABLE items ENABLE TRIGGER fencepost_update", "ALTER TABLE items RENAME tenant TO other", "ALTER TABLE items DROP tenant CASCADE", "DROP TABLE items CASCADE",
			"ALTER TABLE parts DETACH PARTITION parts_low", "UPDATE parts_low SET v = 1",
			"CREATE TRIGGER aaa BEFORE UPDATE ON items FOR EACH ROW EXECUTE FUNCTION move()",
			"CREATE OR REPLACE FUNCTION fencepost.require(p_resource text, p_table text, p_report_only boolean) RETURNS void LANGUAGE plpgsql AS 'BEGIN END'",
			"CREATE OR REPLACE FUNCTION " + function + "() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
			"ALTER FUNCTION fencepost.enter(text, bigint, text, integer, integer) SECURITY INVOKER", "DROP FUNCTION " + function + "() CASCADE",
			"CREATE TABLE fencepost.other (id int)", "DROP SCHEMA fencepost CASCADE", "ALTER ROLE " + role + " SUPERUSER",
			"SET session_replication_role = replica",
			"SELECT fencepost.install_guard('items', '[{\"text\":\"x\"}]', true, 0)", "SELECT fencepost.remove_guard('items', 0)",
			"SELECT fencepost.require('a', 'items')", "SELECT fencepost.lock_guards(0)", "SELECT fencepost.refuse_truncate('items')",
		} {
			if err := db.unfenced(t.Context(), sql); pgerr.State(err) != "42501" {
				t.Errorf("the role, %s: %v", sql, err)
			}
			err := pgx.BeginFunc(t.Context(), e.admin, func(tx pgx.Tx) error { // the control
				defer tx.Rollback(context.Background())
				_, err := tx.Exec(t.Context(), sql)
				return err
			})
			if state := pgerr.State(err); state == "42501" || state != "" && !strings.HasPrefix(state, "SF") {
				t.Errorf("a superuser, %s: %v", sql, err)
			}
		}
		found, err := e.db.Verify(t.Context(), Verification{Role: role, Triggers: []Trigger{triggerOn([]string{"items"}, `{tenant}`)}})
		if err != nil || len(found) > 0 {
			t.Errorf("Verify: %v, %v", found, err)
		}
	})
}

// TestOperatorAndReader: what each of the other roles may do.
func TestOperatorAndReader(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		e.guardWriters()
		roles := e.testRoles(t)
		if err := e.db.MigrateRoles(t.Context(), roles); err != nil {
			t.Fatal(err)
		}
		for name, may := range map[string]map[string]bool{
			roles.Reader:   {"mark": true, "guarded": true, "verify": true, "admit": true}, // of the claim that is the mark, which is a read
			roles.Operator: {"mark": true, "guarded": true, "verify": true, "retire": true, "raise": true, "admit": true},
			roles.Enforcer: {"raise": true},
		} {
			member := "fencepost_one_of_" + e.driver
			t.Run(name, func(t *testing.T) {
				db := e.as(t, member)
				e.exec("GRANT " + pgx.Identifier{name}.Sanitize() + " TO " + member)
				for what, err := range map[string]error{
					"mark":    func() error { _, err := db.Mark(t.Context(), "a"); return err }(),
					"guarded": func() error { _, err := db.Triggers(t.Context()); return err }(),
					"verify":  func() error { _, err := db.Verify(t.Context(), Verification{Role: member}); return err }(),
					"retire":  func() error { _, err := db.Retire(t.Context(), time2001); return err }(),
					"raise":   db.Raise(t.Context(), claimOf("a", 5)),
					"admit":   func() error { _, err := db.Admit(t.Context(), claimOf("a", 5)); return err }(),
					"install": db.RemoveTrigger(t.Context(), []string{"items"}),
				} {
					if (err == nil) != may[what] || err != nil && pgerr.State(err) != "42501" {
						t.Errorf("%s: %v", what, err)
					}
				}
			})
		}
	})
}

func TestRolesSQLRefuses(t *testing.T) {
	for _, r := range []RoleNames{{Enforcer: "public"}, {Operator: "pg_monitor"}, {Reader: "none"}, {Reader: strings.Repeat("x", 64)}, {Reader: "a\x00"}, {Reader: "x", Operator: "x"}} {
		if sql, err := RolesSQL(&r); guard.ReasonOf(err) != guard.ReasonInvalid || sql != "" || !strings.Contains(err.Error(), "RoleNames") {
			t.Errorf("%+v: %q, %v", r, sql, err)
		}
	}
}
