package sqlfence

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"
)

// testRoles belong only to this test: roles are shared by the whole cluster.
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

// TestRoles (P1): what the application's role must not do fails with 42501, each
// with the control that a superuser can do it; the role can do what it needs.
func TestRoles(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		e.guardWriters()
		roles := e.testRoles(t)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				noError(t, e.db.MigrateRoles(context.Background(), roles))
			})
		}
		wg.Wait()
		role, db := e.as("member")
		e.exec(fmt.Sprintf("GRANT %s TO %s; GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON items, parts, whole TO %s", pgx.Identifier{roles.Enforcer}.Sanitize(), role, role))

		noError(t, db.Raise(t.Context(), claimOf("a", 6)))
		err := db.fenced(t.Context(), claimOf("a", 6), running("UPDATE items SET v = 9 WHERE id = 1"))
		noError(t, err)
		wantReason(t, ErrorFrom(db.plain(t.Context(), func(ctx context.Context, tx testTx) error {
			if err := tx.present(ctx, claimOf("a", 5)); err != nil {
				return err
			}
			_, err := tx.exec(ctx, "UPDATE items SET v = 9 WHERE id = 1")
			return err
		})), guard.ReasonStale)
		function := "fencepost." + e.text("SELECT fencepost.guard_name('items'::regclass)")
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
			wantState(t, db.unfenced(t.Context(), sql), "42501", "the role, %s", sql)
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

// TestWhatRolesMayDo: what each of the roles may do, and one without rights; the rest is
// a setup error.
func TestWhatRolesMayDo(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		e.guardWriters()
		roles := e.testRoles(t)
		must(t, e.db.MigrateRoles(t.Context(), roles))
		for name, may := range map[string]string{
			roles.Reader:   "Mark Marks Triggers Verify Migrate Admit", // admits the claim that is the mark, which is a read
			roles.Operator: "Mark Marks Triggers Verify Migrate Admit Retire Raise InTx",
			roles.Enforcer: "Raise InTx",
			"":             "",
		} {
			t.Run(name, func(t *testing.T) {
				one := *e
				one.TB = t
				member, db := one.as("one")
				if name != "" {
					e.exec("GRANT " + pgx.Identifier{name}.Sanitize() + " TO " + member)
				}
				for what, call := range e.calls(db, claimOf("a", 5), "Mark", "Marks", "Triggers", "Verify", "Migrate", "Admit", "Retire", "Raise", "InTx", "RemoveTrigger") {
					err := call(t.Context())
					if slices.Contains(strings.Fields(may), what) {
						if err != nil && err != errRan {
							t.Errorf("%s: %v", what, err)
						}
					} else if guard.ReasonOf(err) != guard.ReasonSetup || pgerr.State(err) != pgerr.Privilege {
						t.Errorf("%s: got %v, want ErrSetup with SQLSTATE 42501", what, err)
					}
				}
			})
		}
	})
}

// TestRolesSQLDefaults: no names are the default ones.
func TestRolesSQLDefaults(t *testing.T) {
	got, err := sqladmin.RolesSQL(nil)
	want, wantErr := sqladmin.RolesSQL(&RoleNames{Enforcer: "fencepost_enforcer", Operator: "fencepost_operator", Reader: "fencepost_reader"})
	if err != nil || wantErr != nil || got != want {
		t.Errorf("%v, %v: %s", err, wantErr, got)
	}
}

// TestRolesSQLOfAnyName: no role's name ends the text that it is quoted in, by
// the driver and at psql, which would run the rest of the name as SQL.
func TestRolesSQLOfAnyName(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		e.exec("CREATE TABLE canary (id int)")
		roles := e.testRoles(t)
		roles.Enforcer = "$roles$;DROP TABLE canary;--" + roles.Enforcer[len(roles.Enforcer)-30:]
		roles.Operator = "$roles0$ '$roles\\" + roles.Operator[len(roles.Operator)-30:]
		roles.Reader = "$$ :reader :'x' " + roles.Reader[len(roles.Reader)-30:]
		sql, err := sqladmin.RolesSQL(roles)
		must(t, err)
		if out, ok := e.psql(t, sql); !ok {
			t.Errorf("psql: %s", out)
		}
		noError(t, e.db.MigrateRoles(t.Context(), roles))
		e.exec("SELECT FROM canary")
		e.wantInt(3, "of the roles are there", "SELECT count(*) FROM pg_roles WHERE rolname IN ($1, $2, $3)", roles.Enforcer, roles.Operator, roles.Reader)
	})
}

// TestMigrateRolesTakesTurns: two that create roles in one database run one after
// the other, whatever their versions: the key of the lock is part of the schema.
func TestMigrateRolesTakesTurns(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		roles := e.testRoles(t)
		tx := e.begin("SELECT pg_advisory_xact_lock_shared(hashtextextended('fencepost.roles', 0))")
		migrated := e.start(func(func()) error { return e.db.MigrateRoles(context.Background(), roles) })
		if len(migrated) != 0 {
			t.Error("it did not wait for another one")
		}
		must(t, tx.Rollback(t.Context()))
		if err := <-migrated; err != nil {
			t.Error(err)
		}
	})
}

func TestRolesSQLRefuses(t *testing.T) {
	for _, r := range []RoleNames{{Enforcer: "public"}, {Operator: "pg_monitor"}, {Reader: "none"}, {Reader: strings.Repeat("x", 64)}, {Reader: "a\x00"}, {Reader: "x", Operator: "x"}} {
		wantInvalid(t, "MigrateRoles", new(sqladmin.Admin).MigrateRoles(t.Context(), &r), "RoleNames", "")
		if sql, err := sqladmin.RolesSQL(&r); guard.ReasonOf(err) != guard.ReasonInvalid || sql != "" || !strings.Contains(err.Error(), "RoleNames") {
			t.Errorf("%+v: %q, %v", r, sql, err)
		}
	}
}

// TestRolesGrantExactly: each role gets exactly its listed rights, on a schema
// in which another component and others also have tables and functions, and with
// objects of the same names in other schemas.
func TestRolesGrantExactly(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		e.exec(`CREATE TABLE fencepost.leases (id int); CREATE TABLE fencepost.audit (id int);
			CREATE SCHEMA elsewhere; CREATE TABLE elsewhere.marks (id int); REVOKE ALL ON ALL TABLES IN SCHEMA elsewhere FROM PUBLIC;
			CREATE FUNCTION elsewhere.raise(text) RETURNS void LANGUAGE sql AS ''; REVOKE ALL ON FUNCTION elsewhere.raise FROM PUBLIC`)
		roles := e.testRoles(t)
		must(t, e.db.MigrateRoles(t.Context(), roles))
		const enforces = "enter enter_row enter_snapshot holders join_resource prepared_holders present raise"
		const reads = "guard_problems guard_status"
		for _, c := range []struct{ role, functions, tables string }{
			{roles.Enforcer, enforces, ""},
			{roles.Operator, "enter enter_row enter_snapshot guard_problems guard_status holders join_resource prepared_holders present raise reset reset_floor retire retire_up_to", "guarded mark_resets marks migrations"},
			{roles.Reader, reads, "guarded mark_resets marks migrations"},
		} {
			if got := e.text(`SELECT coalesce(string_agg(proname, ' ' ORDER BY proname), '') FROM pg_proc
				WHERE pronamespace IN ('fencepost'::regnamespace, 'elsewhere'::regnamespace) AND has_function_privilege($1, oid, 'EXECUTE')`, c.role); got != c.functions {
				t.Errorf("%s may call %s, want %s", c.role, got, c.functions)
			}
			if got := e.text(`SELECT coalesce(string_agg(relname, ' ' ORDER BY relname), '') FROM pg_class WHERE relkind = 'r'
				AND relnamespace IN ('fencepost'::regnamespace, 'elsewhere'::regnamespace) AND has_table_privilege($1, oid, 'SELECT')`, c.role); got != c.tables {
				t.Errorf("%s may read %s, want %s", c.role, got, c.tables)
			}
			if n := e.int(`SELECT count(*) FROM pg_class WHERE relkind = 'r' AND relnamespace IN ('fencepost'::regnamespace, 'elsewhere'::regnamespace)
				AND has_table_privilege($1, oid, 'INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER')`, c.role); n != 0 {
				t.Errorf("%s may write %d tables", c.role, n)
			}
		}
	})
}

// TestLockKeyIsSecret: a role that may only log in cannot block a raise with a
// lock on the hash of the resource's name, nor learn the key or its salt. A
// session that takes the key from pg_locks is distinguished from those that
// entered. The control is a key without the salt.
func TestLockKeyIsSecret(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		role, stranger := e.as("stranger")
		e.exec("GRANT USAGE ON SCHEMA fencepost TO " + role)
		for _, sql := range []string{"SELECT salt FROM fencepost.lock_salt", "SELECT fencepost.lock_salt()", "SELECT fencepost.lock_key('r')"} {
			wantState(t, stranger.unfenced(t.Context(), sql), pgerr.Privilege, "%s", sql)
		}
		first, again, other := e.int("SELECT fencepost.lock_key('r')"), e.int("SELECT fencepost.lock_key('r')"), e.int("SELECT fencepost.lock_key('s')")
		if first != again || first == other {
			t.Errorf("the keys of r, r and s are %d, %d and %d", first, again, other)
		}
		impatient := e.open(&Options{LockTimeout: 100 * time.Millisecond, RaiseTimeout: 300 * time.Millisecond, TerminateAfter: -1})
		raiseUnder := func(lock string, token guard.Token) error {
			var err error
			held := stranger.plain(t.Context(), func(ctx context.Context, tx testTx) error {
				if _, err := tx.exec(ctx, "SELECT pg_advisory_xact_lock_shared("+lock+")"); err != nil {
					return err
				}
				if got := e.text("SELECT coalesce(string_agg(entered::text, ' '), '') FROM fencepost.holders('r', $1, 'x')", int64(token)); lock != byName && got != "false" {
					t.Errorf("the session that did not enter is listed as %q", got)
				}
				err = impatient.Raise(ctx, claimOf("r", token))
				return nil
			})
			if held != nil {
				t.Fatal(held)
			}
			return err
		}
		noError(t, raiseUnder(byName, 5), "under a lock on the name's hash")
		wantState(t, raiseUnder(fmt.Sprint(e.int("SELECT fencepost.lock_key('r')")), 6), pgerr.LockTimeout, "under a lock on the key, the control")
		noError(t, e.db.fenced(t.Context(), claimOf("r", 5), func(ctx context.Context, tx testTx) error {
			e.wantText("true", "the session that entered is listed as", "SELECT string_agg(entered::text, ' ') FROM fencepost.holders('r', 6, 'x')")
			return nil
		}))
	})
}

const byName = "hashtextextended('r', 7378697629483820646)"

// TestRolesSQLKeepsThePath: a script keeps its search_path.
func TestRolesSQLKeepsThePath(t *testing.T) {
	e := newEnvOf(t, "pgx")
	name := e.text("SELECT current_database()")
	sql, err := sqladmin.RolesSQL(&RoleNames{Enforcer: "e" + name, Operator: "o" + name, Reader: "r" + name})
	must(t, err)
	tx, err := e.admin.Begin(t.Context())
	must(t, err)
	defer tx.Rollback(context.Background())
	for _, statement := range []string{"SET LOCAL search_path = application, public", sql} {
		if _, err := tx.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	var path string
	if err := tx.QueryRow(t.Context(), "SHOW search_path").Scan(&path); err != nil || path != "application, public" {
		t.Errorf("search_path is %q, %v", path, err)
	}
}
