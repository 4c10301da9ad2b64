package sqlfence

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/longtest"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"
	"github.com/fencepost-go/fencepost/sqlfence/sqlrow"
)

// asMigrated checks that the schema is what one Migrate makes, whose functions are those
// of this build.
func (e *env) asMigrated(t *testing.T) {
	t.Helper()
	pgtest.CheckSchema(t, e.admin, "fencepost", "testdata/schema.txt", false)
	e.wantFindings("the schema", Verification{})
}

// TestMigrateConcurrently: replicas that start at once on an empty database
// all succeed, and so does each a second time; the schema is the same as one
// replica creates.
func TestMigrateConcurrently(t *testing.T) {
	e := someEnv(t)
	for _, level := range []string{"read committed", "serializable"} {
		e.exec("DROP SCHEMA fencepost CASCADE")
		db := e.serverDefault("default_transaction_isolation", level)
		var wg sync.WaitGroup
		for range longtest.ByLength(6, 16) {
			wg.Go(func() {
				for range 2 {
					noError(t, db.Migrate(context.Background()))
				}
			})
		}
		wg.Wait()
		e.asMigrated(t)
	}
}

// TestMigrationSQL: the printed text creates the same schema, and Migrate finds
// it applied.
func TestMigrationSQL(t *testing.T) {
	e := someEnv(t)
	e.exec("DROP SCHEMA fencepost CASCADE")
	e.exec("BEGIN;" + sqladmin.MigrationSQL() + "COMMIT")
	before := e.text("SELECT string_agg(xmin::text || applied_at, ' ') FROM fencepost.migrations")
	must(t, e.db.Migrate(t.Context()))
	e.asMigrated(t)
	e.wantText(before, "Migrate applied it again", "SELECT string_agg(xmin::text || applied_at, ' ') FROM fencepost.migrations")
}

// TestMigrateRefusesNewer: a schema of a newer build is left alone.
func TestMigrateRefusesNewer(t *testing.T) {
	e := someEnv(t)
	e.exec("INSERT INTO fencepost.migrations (component, version, name) VALUES ('sqlfence', $1, 'later')", schema().Version()+1)
	wantSays(t, e.db.Migrate(t.Context()), guard.ReasonSetup, "run a newer build")
	pgtest.CheckSchema(t, e.admin, "fencepost", "testdata/schema.txt", false)
}

// TestMigrateBehindAnother (P6): where nothing is to be done, Migrate waits for nobody, also
// not for a migration whose client has stopped. Where it has to wait, the end of its
// context is unavailable, since nothing was sent that could have an effect, names the
// session that has the lock, and gives the connection back.
func TestMigrateBehindAnother(t *testing.T) {
	e := newEnvOf(t, "pgx")
	const key = int64(0x66656e6365707374)
	stopped := e.begin("SELECT pg_advisory_xact_lock($1)", key)
	noError(t, e.db.Migrate(t.Context()), "with nothing to do")
	e.exec("DROP SCHEMA fencepost CASCADE")
	// A second look says that the response to the first has arrived.
	waits := func() {
		t.Helper()
		const looks = " FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND state = 'idle in transaction' AND strpos(query, 'pg_locks') > 0 AND strpos(query, $1::bigint::text) > 0"
		e.waitFor("the migration to see who has the lock", "SELECT count(*) > 0"+looks, key)
		first := e.text("SELECT coalesce(max(query_start), now())::text"+looks, key)
		e.waitFor("the migration to look again", "SELECT count(*) > 0"+looks+" AND query_start > $2::text::timestamptz", key, first)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.db.Migrate(ctx) }()
	waits()
	cancel()
	err := <-done
	wantSays(t, err, guard.ReasonUnavailable, fmt.Sprintf("pg_terminate_backend(%d)", stopped.Conn().PgConn().PID()))
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	go func() { done <- e.db.Migrate(t.Context()) }()
	waits()
	must(t, stopped.Rollback(t.Context()))
	noError(t, <-done, "once the other has ended")
	e.asMigrated(t)
}

var update = flag.Bool("update", false, "write testdata/schema.txt in place of comparing with it")

// TestSchema: what Migrate makes is what testdata/schema.txt says.
func TestSchema(t *testing.T) {
	e := newEnvOf(t, "pgx")
	pgtest.CheckSchema(t, e.admin, "fencepost", "testdata/schema.txt", *update)
}

// TestSchemaWithoutRows (P5, P6): after a restore of the schema without its data
// nothing enters or raises, and each error says why and what to do; so does that of
// Migrate. The way out works.
func TestSchemaWithoutRows(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.exec("TRUNCATE fencepost.lock_salt, fencepost.migrations, fencepost.marks")
		db := e.open(nil, func(*pgx.ConnConfig) {}) // sessions without plans
		for what, err := range map[string]error{
			"Raise": db.Raise(t.Context(), claimOf("r", 5)), "InTx": db.fenced(t.Context(), claimOf("r", 5), never(t)),
		} {
			wantSays(t, err, guard.ReasonOther, "restore of the schema without its data", "%s", what)
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
		wantSays(t, table.Upsert(t.Context(), e.db, claimOf("B", 9), Key{"B"}, Set{"v": 9}), guard.ReasonSetup, "trigger", "under the other claim")
		e.wantText("0 3", "the row of b", "SELECT concat(v, ' ', last_fencing_token) FROM n")
		noError(t, table.Upsert(t.Context(), e.db, claimOf("b", 4), Key{"b"}, Set{"v": 4}), "the control")
	})
}

// testRoles belong only to this test: roles are shared by the whole cluster.
func (e *env) testRoles(t *testing.T) *RoleNames {
	r := &RoleNames{Enforcer: e.roleName("enforcer"), Operator: e.roleName("oper'a\\tor"), Reader: e.roleName(`read"er`)}
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
	e := someEnv(t)
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
	noError(t, db.fenced(t.Context(), claimOf("a", 6), running("UPDATE items SET v = 9 WHERE id = 1")))
	wantReason(t, presenting(db, "UPDATE items SET v = 9 WHERE id = 1", claimOf("a", 5)), guard.ReasonStale)
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
	e.wantFindings("the role", Verification{Role: role, Triggers: []Trigger{triggerOn([]string{"items"}, `{tenant}`)}})
}

// TestWhatRolesMayDo: what each of the roles may do, and one without rights; the rest is
// a setup error.
func TestWhatRolesMayDo(t *testing.T) {
	e := someEnv(t)
	e.guardWriters()
	roles := e.testRoles(t)
	must(t, e.db.MigrateRoles(t.Context(), roles))
	for name, may := range map[string]string{
		roles.Reader:   "Mark Marks Triggers Verify Migrate Admit", // admits the claim that is the mark, which is a read
		roles.Operator: "Mark Marks Triggers Verify Migrate Admit Retire Raise InTx",
		roles.Enforcer: "Raise InTx Mark Admit",
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
	e := someEnv(t)
	e.exec("CREATE TABLE canary (id int)")
	roles := e.testRoles(t)
	roles.Enforcer = "$roles$;DROP TABLE canary;--" + roles.Enforcer
	roles.Operator = "$roles0$ '$roles\\" + roles.Operator
	roles.Reader = "$$ :reader :'x' " + roles.Reader
	sql, err := sqladmin.RolesSQL(roles)
	must(t, err)
	if out, ok := e.psql(t, sql); !ok {
		t.Errorf("psql: %s", out)
	}
	noError(t, e.db.MigrateRoles(t.Context(), roles))
	e.exec("SELECT FROM canary")
	e.wantInt(3, "of the roles are there", "SELECT count(*) FROM pg_roles WHERE rolname IN ($1, $2, $3)", roles.Enforcer, roles.Operator, roles.Reader)
}

// TestMigrateRolesTakesTurns: two that create roles in one database run one after
// the other, whatever their versions: the key of the lock is part of the schema.
func TestMigrateRolesTakesTurns(t *testing.T) {
	e := someEnv(t)
	roles := e.testRoles(t)
	tx := e.begin("SELECT pg_advisory_xact_lock_shared(hashtextextended('fencepost.roles', 0))")
	migrated := e.start(func(func()) error { return e.db.MigrateRoles(context.Background(), roles) })
	if len(migrated) != 0 {
		t.Error("it did not wait for another one")
	}
	must(t, tx.Rollback(t.Context()))
	noError(t, <-migrated)
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
// objects of the same names in other schemas; and nobody else has any, on what
// installing triggers created neither. The control is a new function.
func TestRolesGrantExactly(t *testing.T) {
	e := someEnv(t)
	e.guardWriters()
	e.exec(`CREATE TABLE fencepost.leases (id int); CREATE TABLE fencepost.audit (id int);
		CREATE SCHEMA elsewhere; CREATE TABLE elsewhere.marks (id int); REVOKE ALL ON ALL TABLES IN SCHEMA elsewhere FROM PUBLIC;
		CREATE FUNCTION elsewhere.raise(text) RETURNS void LANGUAGE sql AS ''; REVOKE ALL ON FUNCTION elsewhere.raise FROM PUBLIC`)
	roles := e.testRoles(t)
	must(t, e.db.MigrateRoles(t.Context(), roles))
	e.exec("CREATE FUNCTION fencepost.open() RETURNS void LANGUAGE sql AS ''")
	for _, c := range []struct{ role, functions, relations string }{
		{roles.Enforcer, "enter enter_row enter_snapshot holders join_resource mark open present raise session", ""},
		{roles.Operator, "enter enter_row enter_snapshot guard_problems guard_status holders join_resource mark open present raise reset retire session", "guarded mark_resets marks migrations"},
		{roles.Reader, "guard_problems guard_status mark open", "guarded mark_resets marks migrations"},
		{e.newRole("anybody", ""), "open", ""},
	} {
		if got := e.text(`SELECT coalesce(string_agg(proname, ' ' ORDER BY proname), '') FROM pg_proc
			WHERE pronamespace IN ('fencepost'::regnamespace, 'elsewhere'::regnamespace) AND has_function_privilege($1, oid, 'EXECUTE')`, c.role); got != c.functions {
			t.Errorf("%s may call %s, want %s", c.role, got, c.functions)
		}
		if got := e.text(`SELECT coalesce(string_agg(relname, ' ' ORDER BY relname), '') FROM pg_class
			WHERE relnamespace IN ('fencepost'::regnamespace, 'elsewhere'::regnamespace) AND CASE relkind WHEN 'S' THEN has_sequence_privilege($1, oid, 'USAGE, SELECT, UPDATE')
				WHEN 'i' THEN false ELSE has_table_privilege($1, oid, 'SELECT') END`, c.role); got != c.relations {
			t.Errorf("%s may read %s, want %s", c.role, got, c.relations)
		}
		e.wantInt(0, c.role+" may write tables", `SELECT count(*) FROM pg_class WHERE relkind IN ('r', 'v', 'm', 'p') AND relnamespace IN ('fencepost'::regnamespace, 'elsewhere'::regnamespace)
			AND has_table_privilege($1, oid, 'INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER')`, c.role)
		may := "false true" // CREATE and USAGE
		if c.relations+c.functions == "open" {
			may = "false false"
		}
		e.wantText(may, c.role+" in the schema", "SELECT concat_ws(' ', has_schema_privilege($1, 'fencepost', 'CREATE')::text, has_schema_privilege($1, 'fencepost', 'USAGE')::text)", c.role)
	}
}

// TestLockKeyIsSecret: a role that may only log in cannot block a raise with a
// lock on the hash of the resource's name, nor learn the key or its salt. A
// session that takes the key from pg_locks is distinguished from those that
// entered. The control is a key without the salt.
func TestLockKeyIsSecret(t *testing.T) {
	e := someEnv(t)
	role, stranger := e.as("stranger")
	e.exec("GRANT USAGE ON SCHEMA fencepost TO " + role)
	for _, sql := range []string{"SELECT salt FROM fencepost.lock_salt", "SELECT fencepost.lock_salt()", "SELECT fencepost.lock_key('r')"} {
		wantState(t, stranger.unfenced(t.Context(), sql), pgerr.Privilege, "%s", sql)
	}
	first, again, other := e.int("SELECT fencepost.lock_key('r')"), e.int("SELECT fencepost.lock_key('r')"), e.int("SELECT fencepost.lock_key('s')")
	if first != again || first == other {
		t.Errorf("the keys of r, r and s are %d, %d and %d", first, again, other)
	}
	impatient := e.open(&Options{LockTimeout: 100 * time.Millisecond, RaiseTimeout: 300 * time.Millisecond, TerminateAfter: endsNobody})
	raiseUnder := func(lock string, token guard.Token) error {
		var err error
		held := stranger.plain(t.Context(), func(ctx context.Context, tx testTx) error {
			if _, err := tx.exec(ctx, "SELECT pg_advisory_xact_lock_shared("+lock+")"); err != nil {
				return err
			}
			if got := e.text("SELECT coalesce(string_agg(kind, ' '), '') FROM fencepost.holders('r', $1, 'x')", int64(token)); lock != byName && got != "stranger" {
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
		e.wantText("entered", "the session that entered is listed as", "SELECT string_agg(kind, ' ') FROM fencepost.holders('r', 6, 'x')")
		return nil
	}))
}

const byName = "hashtextextended('r', 7378697629483820646)"

// TestRolesSQLKeepsThePath: a script keeps its search_path.
func TestRolesSQLKeepsThePath(t *testing.T) {
	e := newEnvOf(t, "pgx")
	sql, err := sqladmin.RolesSQL(&RoleNames{Enforcer: e.roleName("e"), Operator: e.roleName("o"), Reader: e.roleName("r")})
	must(t, err)
	tx := e.begin("SET LOCAL search_path = application, public")
	_, err = tx.Exec(t.Context(), sql)
	must(t, err)
	var path string
	if err := tx.QueryRow(t.Context(), "SHOW search_path").Scan(&path); err != nil || path != "application, public" {
		t.Errorf("search_path is %q, %v", path, err)
	}
}

// TestRepairBehindAMigration (P5): a repair that waits for the migration of a newer build sees
// its version, and does not put this build's functions in the place of newer ones. In the
// control the other one changes nothing.
func TestRepairBehindAMigration(t *testing.T) {
	e := newEnvOf(t, "pgx")
	const lock = "SELECT pg_advisory_xact_lock($1)"
	for _, newer := range []bool{false, true} {
		e.exec("DROP FUNCTION IF EXISTS fencepost.refuse_entry")
		other := e.begin(lock, int64(0x66656e6365707374))
		if newer {
			_, err := other.Exec(t.Context(), "INSERT INTO fencepost.migrations (component, version, name) VALUES ('sqlfence', $1, 'later')", schema().Version()+1)
			must(t, err)
		}
		type result struct {
			repaired []string
			err      error
		}
		done := make(chan result, 1)
		go func() {
			repaired, err := sqladmin.Pgx(e.admin).Repair(t.Context())
			done <- result{repaired, err}
		}()
		pgtest.Blocked(t, e.admin, "SET LOCAL lock_timeout", 1)
		must(t, other.Commit(t.Context()))
		got := testkit.Receive(t, "the repair", done)
		there := e.int("SELECT count(*) FROM pg_proc WHERE proname = 'refuse_entry'")
		if newer && (guard.ReasonOf(got.err) != guard.ReasonSetup || there != 0) || !newer && (got.err != nil || len(got.repaired) != 1 || there != 1) {
			t.Errorf("newer %v: repaired %q, %v, %d there", newer, got.repaired, got.err, there)
		}
	}
}
