package sqlfence

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
)

// wantFindings compares Verify's findings with what each must say, in order.
func (e *env) wantFindings(what string, v Verification, says ...string) {
	e.Helper()
	found, err := e.db.Verify(e.Context(), v)
	if err != nil {
		e.Errorf("%s: %v", what, err)
		return
	}
	for i := range max(len(found), len(says)) {
		switch {
		case i >= len(found):
			e.Errorf("%s: did not find %q", what, says[i])
		case i >= len(says):
			e.Errorf("%s: found %q", what, found[i])
		case !strings.Contains(found[i].String(), says[i]):
			e.Errorf("%s: found %q, want %q", what, found[i], says[i])
		}
	}
}

// drift is a change that Verify must find, and what undoes it.
type drift struct{ do, undo, says string }

// wantDrifts makes each change, of which Verify must find nothing else, and undoes
// it, after which it finds nothing: neither beside the next change, nor at the end.
func (e *env) wantDrifts(v Verification, drifts []drift) {
	e.Helper()
	e.wantFindings("before any change", v)
	for _, c := range drifts {
		e.exec(c.do)
		e.wantFindings(c.do, v, c.says)
		e.exec(c.undo)
	}
	e.wantFindings("undone", v)
}

// TestVerifyGuarded: every way in which triggers can be missing or changed is
// found, and installing again repairs it.
func TestVerifyGuarded(t *testing.T) {
	e := someEnv(t)
	e.guardWriters()
	g := triggerOn([]string{"parts"}, `{tenant}`)
	v := Verification{Triggers: []Trigger{g}}
	e.wantFindings("guarded", v)
	name := e.text("SELECT fencepost.guard_name('parts'::regclass)")
	others := e.text("SELECT fencepost.guard_name('items'::regclass)")
	another := func(when, function string) string {
		if when != "" {
			when = "WHEN (" + when + ")"
		}
		return "DROP TRIGGER fencepost_insert ON parts; CREATE TRIGGER fencepost_insert AFTER INSERT ON parts FOR EACH ROW " + when + " EXECUTE FUNCTION fencepost." + function + "(); ALTER TABLE parts ENABLE ALWAYS TRIGGER fencepost_insert; " +
			"ALTER TABLE parts_low ENABLE ALWAYS TRIGGER fencepost_insert; ALTER TABLE parts_high ENABLE ALWAYS TRIGGER fencepost_insert; ALTER TABLE parts_high_a ENABLE ALWAYS TRIGGER fencepost_insert"
	}
	var anotherOnes []string
	for _, table := range []string{"parts", "parts_high", "parts_high_a", "parts_low"} {
		anotherOnes = append(anotherOnes, table+": the trigger fencepost_insert is another one")
	}
	for _, c := range []struct {
		sql  string
		says []string
	}{
		{"ALTER TABLE ONLY parts DISABLE TRIGGER fencepost_update", []string{"parts: the trigger fencepost_update is disabled"}},
		{"ALTER TABLE parts_low ENABLE TRIGGER fencepost_insert", []string{"parts_low: the trigger fencepost_insert is not enabled ALWAYS"}},
		{"ALTER TABLE parts_low ENABLE REPLICA TRIGGER fencepost_insert", []string{"parts_low: the trigger fencepost_insert is not enabled ALWAYS"}},
		{"ALTER TABLE parts_low DISABLE TRIGGER fencepost_delete", []string{"parts_low: the trigger fencepost_delete is disabled"}},
		{"DROP TRIGGER fencepost_truncate ON parts", []string{"parts: the trigger fencepost_truncate is missing"}},
		{"DROP TRIGGER fencepost_delete ON parts; CREATE TRIGGER fencepost_delete AFTER DELETE ON parts FOR EACH STATEMENT EXECUTE FUNCTION fencepost." + name + "(); ALTER TABLE ONLY parts ENABLE ALWAYS TRIGGER fencepost_delete",
			[]string{"parts: the trigger fencepost_delete is another one", "parts_high: the trigger fencepost_delete is missing", "parts_high_a: the trigger fencepost_delete is missing", "parts_low: the trigger fencepost_delete is missing"}},
		{another("false", name), anotherOnes},
		{another("strpos(coalesce(current_setting('fencepost."+name+"', true), ''), format(' %L;', NEW.v)) = 0", name), anotherOnes}, // another column
		{another("", name), anotherOnes},
		{"ALTER FUNCTION fencepost." + name + "() SECURITY INVOKER", []string{"is not of this version"}},
		{"ALTER FUNCTION fencepost." + name + "() RESET search_path", []string{"is not of this version"}},
		{"CREATE OR REPLACE FUNCTION fencepost." + name + "() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS 'BEGIN RETURN NULL; END'", []string{"is not of this version"}},
		{"DELETE FROM fencepost.guarded WHERE table_name = 'parts'", []string{"not listed in fencepost.guarded"}},
		{`UPDATE fencepost.guarded SET parts = '[{"text":"x"}]' WHERE table_name = 'parts'`, []string{"listed in fencepost.guarded with another resource or mode"}},
		{"ALTER TABLE parts RENAME tenant TO x; ALTER TABLE parts ADD tenant text NOT NULL DEFAULT 'a'", []string{"the columns of its resource are not those that were guarded"}},
		{"DROP FUNCTION fencepost." + name + "() CASCADE", []string{"is missing"}},
		{another("", others), anotherOnes},
	} {
		e.exec(c.sql)
		e.wantFindings(c.sql, v, c.says...)
		must(t, e.db.InstallTrigger(t.Context(), g)) // the next case finds only what is its own
	}
	e.wantFindings("repaired", v)
	e.wantFindings("a table that is not there", Verification{Triggers: []Trigger{triggerOn([]string{"gone"}, "{tenant}")}}, "the table does not exist")
	e.wantFindings("a table never guarded", Verification{Triggers: []Trigger{triggerOn([]string{"orders"}, `x`)}}, "not listed", "is missing")
}

// TestVerifyUnderQuoteAllIdentifiers: a setting that changes how names are
// written is not a finding.
func TestVerifyUnderQuoteAllIdentifiers(t *testing.T) {
	e := someEnv(t)
	e.guardWriters()
	v := Verification{Triggers: []Trigger{triggerOn([]string{"items"}, "{tenant}")}}
	e.wantFindings("as installed", v)
	e.db = e.serverDefault("quote_all_identifiers", "on")
	e.wantFindings("under quote_all_identifiers", v)
	e.exec("ALTER FUNCTION fencepost.guard_body RESET quote_all_identifiers")
	if found, err := e.db.Verify(t.Context(), v); err != nil || !slices.ContainsFunc(found, func(f Finding) bool { return strings.Contains(f.Problem, "not of this version") }) {
		t.Errorf("without the setting, the control: %v, %v", found, err)
	}
}

// TestVerifyFunctions: functions that are not this build's are found.
func TestVerifyFunctions(t *testing.T) {
	e := someEnv(t)
	e.wantFindings("a fresh schema", Verification{})
	e.mutate("judge", "SF001", "SF00X")
	e.wantFindings("another body", Verification{}, "function fencepost.judge: is not the one of this build")
	e.exec("ALTER FUNCTION fencepost.judge SECURITY DEFINER; ALTER FUNCTION fencepost.judge RESET search_path")
	e.wantFindings("another body with other rights", Verification{}, "function fencepost.judge: is not the one of this build")
	e.exec("ALTER FUNCTION fencepost.judge SECURITY INVOKER; ALTER FUNCTION fencepost.judge SET search_path = pg_catalog, pg_temp")
	e.mutate("judge", "SF00X", "SF001")
	e.exec("ALTER FUNCTION fencepost.require SECURITY INVOKER; ALTER FUNCTION fencepost.refuse RESET search_path")
	e.wantFindings("other rights", Verification{}, "function fencepost.refuse: has no pinned search_path", "function fencepost.require: does not run with the rights")
	e.exec("ALTER FUNCTION fencepost.require SECURITY DEFINER; ALTER FUNCTION fencepost.refuse SET search_path = pg_catalog, pg_temp; DROP FUNCTION fencepost.retire; UPDATE fencepost.migrations SET version = 9 WHERE version = 2 AND component = 'sqlfence'")
	e.wantFindings("half of it", Verification{}, "schema fencepost: has sqlfence version 9", "function fencepost.retire: is missing")
}

// TestVerifyRole: a role that could get around the fence is found.
func TestVerifyRole(t *testing.T) {
	e := someEnv(t)
	e.guardWriters()
	role := e.newRole("verified", "LOGIN")
	v := Verification{Role: role, Triggers: []Trigger{triggerOn([]string{"parts"}, `{tenant}`), triggerOn([]string{"family"}, `{tenant}`)}}
	admin := pgx.Identifier{e.text("SELECT current_user")}.Sanitize()
	owner := pgx.Identifier{e.text("SELECT pg_get_userbyid(nspowner) FROM pg_namespace WHERE nspname = 'public'")}.Sanitize()
	enforcer := e.testRoles(t)
	must(t, e.db.MigrateRoles(t.Context(), enforcer))
	e.exec("GRANT " + pgx.Identifier{enforcer.Enforcer}.Sanitize() + " TO " + role)
	e.wantDrifts(v, []drift{
		{"ALTER TABLE parts_low OWNER TO " + role, "ALTER TABLE parts_low OWNER TO " + admin, "owns public.parts_low"},
		{"REVOKE EXECUTE ON FUNCTION fencepost.enter, fencepost.raise FROM " + pgx.Identifier{enforcer.Enforcer}.Sanitize(),
			"GRANT EXECUTE ON FUNCTION fencepost.enter, fencepost.raise TO " + pgx.Identifier{enforcer.Enforcer}.Sanitize(), "may not call fencepost.enter, fencepost.raise"},
		{"GRANT CREATE ON SCHEMA fencepost TO " + role, "REVOKE CREATE ON SCHEMA fencepost FROM " + role, "may create in schema fencepost"},
		{"GRANT UPDATE ON fencepost.marks TO " + role, "REVOKE UPDATE ON fencepost.marks FROM " + role, "may write fencepost.marks"},
		{"GRANT UPDATE (token) ON fencepost.marks TO " + role, "REVOKE UPDATE (token) ON fencepost.marks FROM " + role, "may write fencepost.marks"},
		{"ALTER FUNCTION fencepost.judge OWNER TO " + role, "ALTER FUNCTION fencepost.judge OWNER TO " + admin, "owns function fencepost.judge"},
		{"ALTER ROLE " + role + " SUPERUSER", "ALTER ROLE " + role + " NOSUPERUSER", "is a superuser"},
		{"ALTER SCHEMA fencepost OWNER TO " + role, "ALTER SCHEMA fencepost OWNER TO " + admin, "owns schema fencepost"},
		{"GRANT ALL ON parts_low TO " + role, "REVOKE ALL ON parts_low FROM " + role, "may create and replace triggers of public.parts_low"},
		{"GRANT TRIGGER ON parts TO PUBLIC", "REVOKE TRIGGER ON parts FROM PUBLIC", "may create and replace triggers of public.parts"},
		{"GRANT DELETE ON fencepost.lock_salt TO " + role, "REVOKE DELETE ON fencepost.lock_salt FROM " + role, "may write fencepost.lock_salt, and so change which locks"},
		{"GRANT INSERT ON fencepost.mark_resets TO " + role, "REVOKE INSERT ON fencepost.mark_resets FROM " + role, "may write fencepost.mark_resets, and so forge"},
		{"GRANT pg_execute_server_program TO " + role, "REVOKE pg_execute_server_program FROM " + role, "is a member of pg_execute_server_program"},
		{"GRANT pg_write_server_files TO " + role, "REVOKE pg_write_server_files FROM " + role, "is a member of pg_write_server_files"},
		{"ALTER SCHEMA public OWNER TO " + role, "ALTER SCHEMA public OWNER TO " + owner, "owns schema public"},
		{"ALTER TABLE child OWNER TO " + role, "ALTER TABLE child OWNER TO " + admin, "owns public.child"},
		{"GRANT TRIGGER ON child TO " + role, "REVOKE TRIGGER ON child FROM " + role, "may create and replace triggers of public.child"},
	})
	e.exec("CREATE FUNCTION fencepost.reset() RETURNS void LANGUAGE sql AS ''")
	e.wantFindings("an overload of reset", v, "function fencepost.reset(): is not of this build", "may call fencepost.reset")
	e.exec("DROP FUNCTION fencepost.reset()")
	// The rights of a role that it may become, too, even if it does not inherit
	// them: SET ROLE is enough, or since PostgreSQL 16 that it administers the
	// role, and so may grant itself the rest. Before, CREATEROLE let it grant
	// itself any role.
	group, how, says := e.newRole("group", ""), "", []string{"may grant itself any role"}
	if e.int("SELECT current_setting('server_version_num')::int") >= 160000 {
		how, says = " WITH ADMIN TRUE, INHERIT FALSE, SET FALSE", nil
	}
	e.exec("ALTER ROLE " + role + " NOINHERIT; GRANT " + group + " TO " + role + how)
	var granted []drift
	for grant, says := range map[string]string{
		"TRIGGER ON parts_high":                "may create and replace triggers of public.parts_high",
		"CREATE ON SCHEMA fencepost":           "may create in schema fencepost",
		"DELETE ON fencepost.marks":            "may write fencepost.marks",
		"INSERT (token) ON fencepost.marks":    "may write fencepost.marks",
		"EXECUTE ON FUNCTION fencepost.reset":  "may call fencepost.reset",
		"EXECUTE ON FUNCTION fencepost.retire": "may call fencepost.retire, and so raise the floor",
	} {
		granted = append(granted, drift{"GRANT " + grant + " TO " + group, "REVOKE " + grant + " FROM " + group, says})
	}
	e.wantDrifts(v, append(granted, drift{"ALTER ROLE " + group + " SUPERUSER", "ALTER ROLE " + group + " NOSUPERUSER", "is a superuser, or a member of one"}))
	for _, creator := range []string{role, group} {
		e.exec("ALTER ROLE " + creator + " CREATEROLE")
		e.wantFindings("CREATEROLE of "+creator, v, says...)
		e.exec("ALTER ROLE " + creator + " NOCREATEROLE")
	}
	e.wantFindings("no such role", Verification{Role: "fencepost_nobody"}, "does not exist")
}

// TestVerifyTriggerPrivilege (P1): a role with all privileges on a table that it
// does not own can replace the table's triggers and so write without a claim,
// and Verify says so; the control is the same role with the privileges that
// writing needs.
func TestVerifyTriggerPrivilege(t *testing.T) {
	e := someEnv(t)
	e.guardWriters()
	role, db := e.as("privileged")
	v := Verification{Role: role, Triggers: []Trigger{triggerOn([]string{"items"}, `{tenant}`)}}
	errWritten := errors.New("written, and rolled back so that the role can be dropped")
	replaced := func() error {
		return db.plain(t.Context(), func(ctx context.Context, tx testTx) error {
			for _, sql := range []string{
				"CREATE FUNCTION pg_temp.nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
				"CREATE OR REPLACE TRIGGER fencepost_update AFTER UPDATE ON items FOR EACH STATEMENT EXECUTE FUNCTION pg_temp.nothing()",
				"UPDATE items SET v = 9",
			} {
				if _, err := tx.exec(ctx, sql); err != nil {
					return err
				}
			}
			return errWritten
		})
	}
	replaces := e.int("SELECT current_setting('server_version_num')::int") >= 140000 // before, a role can only add triggers
	e.exec("GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON items TO " + role)
	e.wantFindings("the privileges to write", v)
	if err := replaced(); replaces && pgerr.State(err) != pgerr.Privilege {
		t.Errorf("with the privileges to write: %v", err)
	}
	e.exec("GRANT ALL ON items TO " + role)
	e.wantFindings("all privileges", v, "may create and replace triggers of public.items")
	if err := replaced(); replaces && !errors.Is(err, errWritten) {
		t.Errorf("with all privileges: %v", err)
	}
}

// TestVerifyInvalid: a malformed request is refused before anything is sent.
func TestVerifyInvalid(t *testing.T) {
	e := someEnv(t)
	for _, v := range []Verification{
		{Tables: []*Table{nil}}, {Role: "a\x00"}, {Triggers: []Trigger{{}}},
		{WithoutSchema: true, Triggers: []Trigger{triggerOn([]string{"a"}, `x`)}},
	} {
		if found, err := e.db.Verify(t.Context(), v); guard.ReasonOf(err) != guard.ReasonInvalid || found != nil {
			t.Errorf("%+v: %v, %v", v, found, err)
		}
	}
}

// TestTriggers: the list says what is wrong with which table, including one
// that is gone or was renamed.
func TestTriggers(t *testing.T) {
	e := someEnv(t)
	e.guardWriters()
	e.exec("DROP TRIGGER fencepost_insert ON items; ALTER TABLE lines RENAME TO lines2; DROP TABLE whole")
	tables, err := e.db.Triggers(t.Context())
	must(t, err)
	var got []string
	for _, s := range tables {
		got = append(got, fmt.Sprintf("%v %v %v", s.Trigger.Table, s.Trigger.Resource, s.Findings))
	}
	want := `[public family] {tenant} []
[public items] {tenant} [public.items: the trigger fencepost_insert is missing]
[public lines2] {tenant} [public.lines2: the table was guarded as public.lines and has been renamed since; what has that name now may not be guarded]
[public moved] {tenant} []
[public parts] {tenant} []
[public whole] all:of:it [public.whole: the table does not exist]`
	if strings.Join(got, "\n") != want {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), want)
	}
	// The next installation removes the entry of the missing table and adds
	// the renamed one.
	must(t, e.db.InstallTrigger(t.Context(), triggerOn([]string{"lines2"}, `{tenant}`)))
	if tables, err = e.db.Triggers(t.Context()); err != nil || len(tables) != 5 || tables[2].Trigger.Table[1] != "lines2" || len(tables[2].Findings) > 0 {
		t.Errorf("%+v, %v", tables, err)
	}
	// A removal removes the entry of its own table and no other of the
	// schema.
	must(t, e.db.RemoveTrigger(t.Context(), []string{"items"}))
	if tables, err = e.db.Triggers(t.Context()); err != nil || len(tables) != 4 {
		t.Errorf("after one removal: %+v, %v", tables, err)
	}
	// Tables with the same name in two schemas are two tables.
	e.exec("CREATE SCHEMA q; CREATE TABLE q.parts (tenant text NOT NULL)")
	must(t, e.db.InstallTrigger(t.Context(), triggerOn([]string{"q", "parts"}, `{tenant}`)))
	if tables, err = e.db.Triggers(t.Context()); err != nil || len(tables) != 5 || tables[3].Trigger.Table[0] != "public" || tables[4].Trigger.Table[0] != "q" {
		t.Errorf("two schemas: %+v, %v", tables, err)
	}
	// A direct caller of the function, which has no Template, cannot
	// install triggers for resources without a name.
	for _, parts := range []string{`[]`, `{}`, `"x"`, `null`, `[{}]`, `[{"text": ""}]`, `[{"text": "x", "column": "tenant"}]`} {
		_, err := e.admin.Exec(t.Context(), "SELECT fencepost.install_guard('items', '"+parts+"', false, 0)")
		if err == nil || !strings.Contains(err.Error(), "has no parts that name its resources") && !strings.Contains(err.Error(), "neither a column nor a text") {
			t.Errorf("parts %s: %v", parts, err)
		}
	}
}

// TestTriggersOfTypes: the list has the template and the columns as they were
// given, with the types of the variables.
func TestTriggersOfTypes(t *testing.T) {
	e := someEnv(t)
	e.exec("CREATE TABLE typed (n int NOT NULL, u uuid NOT NULL, t text NOT NULL)")
	g := triggerOn([]string{"public", "typed"}, "{number:int}:{id:uuid}:x:{t}", "n", "u")
	must(t, e.db.InstallTrigger(t.Context(), g))
	tables, err := e.db.Triggers(t.Context())
	if err != nil || len(tables) != 1 || len(tables[0].Findings) != 0 {
		t.Fatalf("%+v, %v", tables, err)
	}
	if got := tables[0].Trigger; got.Resource.String() != g.Resource.String() || !maps.Equal(got.Columns, g.Columns) {
		t.Errorf("listed as %s with %v, want %s with %v", got.Resource, got.Columns, g.Resource, g.Columns)
	}
	e.exec(`UPDATE fencepost.guarded SET parts = '[{"text": {"of": "another version"}}]'`)
	if tables, err := e.db.Triggers(t.Context()); tables != nil || guard.ReasonOf(err) != guard.ReasonUnavailable || !strings.Contains(err.Error(), "a response of another version") {
		t.Errorf("another version: %+v, %v", tables, err)
	}
}

// TestVerifyFails (P5): a check that fails is an error of Verify, and not a
// database without findings.
func TestVerifyFails(t *testing.T) {
	e := newEnvOf(t, "pgx")
	p, through := e.newProxy()
	db := e.open(nil, through)
	tables := Verification{Tables: []*Table{e.table("jobs", []string{"id"}, nil)}, WithoutSchema: true}
	if found, err := db.Verify(t.Context(), tables); err != nil || len(found) != 1 {
		t.Errorf("the control: %v, %v", found, err)
	}
	p.set(on("'the table does not exist'", cutBefore))
	p.CutAll() // what was prepared is sent again
	if found, err := db.Verify(t.Context(), tables); found != nil || guard.ReasonOf(err) != guard.ReasonUnavailable {
		t.Errorf("tables: %v, %v, want ErrUnavailable", found, err)
	}
	p.set(nil)
	e.exec("DROP FUNCTION fencepost.guard_problems")
	found, err := db.Verify(t.Context(), Verification{Triggers: []Trigger{triggerOn([]string{"jobs"}, "{tenant}")}})
	if found != nil || guard.ReasonOf(err) != guard.ReasonSetup || !strings.Contains(err.Error(), "sqladmin's Migrate") {
		t.Errorf("triggers: %v, %v, want ErrSetup that names the way out", found, err)
	}
}

// TestVerifyDrift: each of these changes of schema fencepost breaks a promise, and
// each is found, drift by drift; undone, nothing is found.
func TestVerifyDrift(t *testing.T) {
	e := someEnv(t)
	e.wantDrifts(Verification{}, []drift{
		{"ALTER FUNCTION fencepost.enter STABLE", "ALTER FUNCTION fencepost.enter VOLATILE", "function fencepost.enter: has another volatility"},
		{"ALTER FUNCTION fencepost.judge IMMUTABLE", "ALTER FUNCTION fencepost.judge VOLATILE", "function fencepost.judge: has another volatility"},
		{"ALTER FUNCTION fencepost.enter SET lock_timeout = 0", "ALTER FUNCTION fencepost.enter RESET lock_timeout", "function fencepost.enter: has other settings than this build: lock_timeout=0"},
		{"ALTER FUNCTION fencepost.raise SET synchronous_commit = off", "ALTER FUNCTION fencepost.raise RESET synchronous_commit", "function fencepost.raise: has other settings than this build: search_path=pg_catalog, pg_temp, synchronous_commit=off"},
		{"CREATE TABLE salt AS TABLE fencepost.lock_salt; TRUNCATE fencepost.lock_salt", "INSERT INTO fencepost.lock_salt TABLE salt; DROP TABLE salt", "table fencepost.lock_salt: has no row"},
		{"ALTER TABLE fencepost.marks ENABLE ROW LEVEL SECURITY", "ALTER TABLE fencepost.marks DISABLE ROW LEVEL SECURITY", "table fencepost.marks: has row-level security"},
		{"CREATE TABLE child () INHERITS (fencepost.marks)", "DROP TABLE child", "table fencepost.marks: has inheritance children"},
		{"GRANT EXECUTE ON FUNCTION fencepost.reset TO PUBLIC", "REVOKE EXECUTE ON FUNCTION fencepost.reset FROM PUBLIC", "function fencepost.reset: may be executed by everybody"},
		{"ALTER TABLE fencepost.marks SET UNLOGGED", "ALTER TABLE fencepost.marks SET LOGGED", "table fencepost.marks: is unlogged"},
		{"CREATE TRIGGER more BEFORE UPDATE ON fencepost.marks FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()", "DROP TRIGGER more ON fencepost.marks", "trigger fencepost.more: is not of this build"},
		{"ALTER TABLE fencepost.mark_resets DISABLE TRIGGER keep_resets", "ALTER TABLE fencepost.mark_resets ENABLE ALWAYS TRIGGER keep_resets", "trigger fencepost.keep_resets: is not enabled ALWAYS"},
		{"ALTER TABLE fencepost.mark_resets ENABLE TRIGGER keep_resets", "ALTER TABLE fencepost.mark_resets ENABLE ALWAYS TRIGGER keep_resets", "trigger fencepost.keep_resets: is not enabled ALWAYS"},
		{"ALTER TABLE fencepost.marks DROP CONSTRAINT marks_pkey", "ALTER TABLE fencepost.marks ADD PRIMARY KEY (resource)", "table fencepost.marks: has no primary key"},
		{"ALTER TABLE fencepost.marks DROP CONSTRAINT marks_token_check", "ALTER TABLE fencepost.marks ADD CONSTRAINT marks_token_check CHECK (token BETWEEN 1 AND 9223372036854775806)", "table fencepost.marks: has lost a check"},
	})
}

// unfitSQL is a correct table, with triggers that leave its mark alone: one
// that only reads it, and those that every table has.
const unfitSQL = `
	CREATE TABLE unfit (id int PRIMARY KEY, v int, last_fencing_token bigint NOT NULL DEFAULT 0, lease text NOT NULL DEFAULT '', changed timestamptz, a text, b text);
	CREATE FUNCTION stamp() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.changed := now(); RETURN NEW; END $$;
	CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF NEW.last_fencing_token < OLD.last_fencing_token OR NEW.lease = 'x' THEN RAISE EXCEPTION 'late'; END IF; RETURN NEW; END $$;
	CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.last_fencing_token := OLD.last_fencing_token; RETURN NEW; END $$;
	CREATE FUNCTION keep_lease() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.v := 1;
		new."lease" = OLD.lease; RETURN NEW; END $$;
	CREATE TRIGGER stamp BEFORE INSERT OR UPDATE ON unfit FOR EACH ROW EXECUTE FUNCTION stamp();
	CREATE TRIGGER look BEFORE UPDATE ON unfit FOR EACH ROW EXECUTE FUNCTION look('some', 'thing');
	CREATE TRIGGER late AFTER UPDATE ON unfit FOR EACH ROW EXECUTE FUNCTION keep();
	INSERT INTO unfit VALUES (1, 0)`

// TestVerifyTable (P1): what single statements need from a table, and what silently
// undoes the mark of a row after a statement was counted as written.
func TestVerifyTable(t *testing.T) {
	e := someEnv(t)
	verify := func(name string, key ...string) Verification {
		return Verification{WithoutSchema: true, Tables: []*Table{e.table(name, key, &TableOptions{LeaseColumn: "lease"})}}
	}
	const again = `DO $$ BEGIN EXECUTE (SELECT string_agg(format('DROP %s IF EXISTS %s CASCADE', CASE relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END, oid::regclass), '; ' ORDER BY relkind DESC)
		FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('v', 'r')); END $$;
		DROP FUNCTION stamp, look, keep, keep_lease; ` + unfitSQL
	e.exec(unfitSQL + "; CREATE UNIQUE INDEX ON unfit (a)")
	e.wantFindings("a good table", verify("unfit", "id"))
	e.wantFindings("a key that includes a unique one", verify("unfit", "b", "a"))
	for _, c := range []struct{ sql, says string }{
		{"ALTER TABLE unfit ALTER last_fencing_token DROP NOT NULL", "may be NULL"},
		{"ALTER TABLE unfit ALTER last_fencing_token TYPE int", "of type integer and must be bigint"},
		{"ALTER TABLE unfit ALTER last_fencing_token DROP DEFAULT, ALTER last_fencing_token ADD GENERATED ALWAYS AS IDENTITY", "column last_fencing_token is generated"},
		{"CREATE INDEX tok ON unfit (b, last_fencing_token)", "in index public.tok, which turns every update"},
		{"CREATE INDEX tok ON unfit ((last_fencing_token + 1))", "in index public.tok"},
		{"CREATE INDEX tok ON unfit (b) WHERE last_fencing_token > 0", "in index public.tok"},
		{"CREATE INDEX tok ON unfit (b) INCLUDE (last_fencing_token)", "in index public.tok"},
		{"ALTER TABLE unfit RENAME last_fencing_token TO other", "token column last_fencing_token is missing"},
		{"ALTER TABLE unfit ALTER lease DROP NOT NULL", "lease column lease may be NULL"},
		{"ALTER TABLE unfit ALTER lease TYPE varchar(3)", "lease column lease is of type character varying(3)"},
		{"ALTER TABLE unfit DROP lease", "lease column lease is missing"},
		{"ALTER TABLE unfit DROP lease; ALTER TABLE unfit ADD lease text NOT NULL GENERATED ALWAYS AS ('x') STORED", "column lease is generated"},
		{"ALTER TABLE unfit DROP CONSTRAINT unfit_pkey", "no unique index covers the key (id)"},
		{"ALTER TABLE unfit DROP CONSTRAINT unfit_pkey, ADD UNIQUE (id) DEFERRABLE", "no unique index covers the key (id)"},
		{"ALTER TABLE unfit DROP CONSTRAINT unfit_pkey; CREATE UNIQUE INDEX ON unfit (id, b)", "no unique index covers the key (id)"},
		{"ALTER TABLE unfit DROP CONSTRAINT unfit_pkey; CREATE UNIQUE INDEX ON unfit (id) WHERE b > ''", "no unique index covers the key (id)"},
		{"ALTER TABLE unfit DROP id", "key column id is missing"},
		{"CREATE TABLE unfit_child () INHERITS (unfit)", "inheritance children"},
		{"ALTER TABLE unfit RENAME TO other", "the table does not exist"},
		{"ALTER TABLE unfit RENAME TO other; CREATE VIEW unfit AS SELECT * FROM other", "is or has a view"},
		{"ALTER TABLE unfit SET UNLOGGED", "it is unlogged"},
		{"CREATE RULE away AS ON UPDATE TO unfit DO INSTEAD NOTHING", "it has rules"},
		// These the first use refuses as well.
		{"CREATE RULE off AS ON UPDATE TO unfit DO INSTEAD NOTHING; ALTER TABLE unfit DISABLE RULE off", "it has rules"},
		{"CREATE RULE away AS ON DELETE TO unfit DO ALSO NOTHING", "it has rules"},
		{"CREATE TRIGGER keep BEFORE UPDATE ON unfit FOR EACH ROW EXECUTE FUNCTION keep()", "the trigger keep runs before the row is written and puts a value of its own into the column last_fencing_token"},
		{"CREATE TRIGGER keep BEFORE INSERT ON unfit FOR EACH ROW EXECUTE FUNCTION keep_lease()", "into the column lease,"},
		{"CREATE TRIGGER keep BEFORE UPDATE ON unfit FOR EACH ROW EXECUTE FUNCTION look('id', 'last_fencing_token')", "into the column last_fencing_token"},
	} {
		e.exec(again)
		e.wantFindings("again", verify("unfit", "id"))
		e.exec(c.sql)
		found, err := e.db.Verify(t.Context(), verify("unfit", "id"))
		if err != nil || len(found) == 0 || !strings.Contains(fmt.Sprint(found), c.says) {
			t.Errorf("%s: %v, %v, want %q", c.sql, found, err, c.says)
		}
	}
	// Partitions, at any depth, and schema fencepost's own: a crash empties an
	// unlogged table and what it has of marks.
	e.exec(`CREATE TABLE parted (id int PRIMARY KEY, last_fencing_token bigint NOT NULL DEFAULT 0) PARTITION BY RANGE (id);
		CREATE TABLE parted_low PARTITION OF parted FOR VALUES FROM (0) TO (10);
		CREATE TABLE parted_high PARTITION OF parted FOR VALUES FROM (10) TO (30) PARTITION BY RANGE (id);
		CREATE TABLE parted_higher PARTITION OF parted_high FOR VALUES FROM (20) TO (30)`)
	parted := Verification{Tables: []*Table{e.table("parted", []string{"id"}, nil)}}
	e.wantDrifts(parted, []drift{
		{"ALTER TABLE parted_low SET UNLOGGED", "ALTER TABLE parted_low SET LOGGED", "public.parted_low: it is unlogged"},
		{"ALTER TABLE parted_higher SET UNLOGGED", "ALTER TABLE parted_higher SET LOGGED", "public.parted_higher: it is unlogged"},
		{"ALTER TABLE fencepost.marks SET UNLOGGED", "ALTER TABLE fencepost.marks SET LOGGED", "table fencepost.marks: is unlogged"},
	})
	e.exec(`CREATE FOREIGN DATA WRAPPER nothing; CREATE SERVER nowhere FOREIGN DATA WRAPPER nothing; CREATE TABLE far (id int NOT NULL, last_fencing_token bigint NOT NULL DEFAULT 0) PARTITION BY LIST (id);
		CREATE FOREIGN TABLE far_1 PARTITION OF far FOR VALUES IN (1) SERVER nowhere`)
	found, err := e.db.Verify(t.Context(), Verification{WithoutSchema: true, Tables: []*Table{e.table("far", []string{"id"}, nil)}})
	if err != nil || !strings.Contains(fmt.Sprint(found), "foreign table") {
		t.Errorf("a foreign partition: %v, %v", found, err)
	}
}

// TestTableRaiseUndone (P2, P5): a mark that a trigger undoes was not raised,
// whatever the server counted; the control is the same table without it.
func TestTableRaiseUndone(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.exec(unfitSQL)
		for _, lease := range []string{"", "lease"} {
			table := e.table("unfit", []string{"id"}, &TableOptions{LeaseColumn: lease, Rule: guard.SameOrNewer})
			var v int
			var cause *guard.InvalidError
			take := func(token guard.Token) error {
				return table.Raise(t.Context(), e.db, claimOf("r", token), Key{1}, Dest{"v": &v})
			}
			must(t, take(5))
			function := "keep"
			if lease != "" {
				function = "keep_lease"
			}
			e.exec("CREATE TRIGGER undo BEFORE UPDATE ON unfit FOR EACH ROW EXECUTE FUNCTION " + function + "()")
			if err := take(6); guard.ReasonOf(err) != guard.ReasonUnfenced || !errors.As(err, &cause) || !strings.Contains(cause.Error(), "trigger") {
				t.Errorf("with the trigger %s: got %v, want ErrUnfenced", function, err)
			}
			e.exec("DROP TRIGGER undo ON unfit")
			noError(t, take(7), "without it")
			e.exec("DELETE FROM unfit; INSERT INTO unfit VALUES (1, 0)")
		}
	})
}
