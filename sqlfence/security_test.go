package sqlfence

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"
)

// TestSearchPathPinned: every function of the schema resolves names in
// pg_catalog first and in pg_temp last, or leaves none to be resolved, and
// those that run with the owner's rights are those that callers need.
func TestSearchPathPinned(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		rows, err := e.admin.Query(t.Context(), `SELECT proname::text, prosrc FROM pg_proc WHERE pronamespace = 'fencepost'::regnamespace
			AND NOT coalesce('search_path=pg_catalog, pg_temp' = ANY (proconfig), false)`)
		must(t, err)
		defer rows.Close()
		for rows.Next() {
			var name, body string
			must(t, rows.Scan(&name, &body))
			if found := unqualified(body); len(found) != 0 {
				t.Errorf("function %s has no pinned search_path and leaves to the caller's: %q", name, found)
			}
		}
		if rows.Err() != nil {
			t.Fatal(rows.Err())
		}
		definers := e.text(`SELECT string_agg(proname, ' ' ORDER BY proname) FROM pg_proc WHERE pronamespace = 'fencepost'::regnamespace AND prosecdef`)
		if definers != "enter enter_row enter_snapshot guard_problems guard_status holders prepared_holders present raise report require reset reset_floor retire retire_up_to" {
			t.Errorf("SECURITY DEFINER: %s", definers)
		}
	})
}

// TestNotHijacked: functions, operators, types and tables that stand in front
// of the system's on the caller's search_path, or in pg_temp, are not used.
func TestNotHijacked(t *testing.T) {
	const caller = `SET LOCAL search_path = shared, pg_temp, public, pg_catalog;
		CREATE TEMP TABLE marks (resource pg_catalog.text, token bigint, lease_id pg_catalog.text) ON COMMIT DROP;`
	const pinned = "raise retire_up_to"
	calls := map[string]string{
		"raise":        "SELECT fencepost.raise('r', 6, 'b', 1000)",
		"enter":        "SELECT fencepost.enter('r', 5, 'a', 1000, 1000)",
		"retire_up_to": "SELECT fencepost.retire_up_to('infinity', 1000, 1000)",
	}
	someDriver(t, func(t *testing.T, e *env) {
		e.hijacker()
		attempt := func(call string) string {
			e.putMark("r", guard.Mark{Token: 5, LeaseID: "a"})
			if _, err := e.admin.Exec(t.Context(), "BEGIN;"+caller+call+";COMMIT"); err != nil {
				e.admin.Reset() // the session has the application's search_path until its transaction ends
				return err.Error()
			}
			return ""
		}
		for function, call := range calls {
			if got := attempt(call); got != "" {
				t.Errorf("%s: %s", function, got)
			}
			if !strings.Contains(pinned, function) {
				continue
			}
			e.exec("ALTER FUNCTION fencepost." + function + " RESET search_path")
			if got := attempt(call); !strings.Contains(got, "hijacked") {
				t.Errorf("%s without a pinned search_path, the control: %q", function, got)
			}
			e.exec("ALTER FUNCTION fencepost." + function + " SET search_path = pg_catalog, pg_temp")
		}
		// Every schema name in enter is needed.
		whole := e.text("SELECT pg_get_functiondef('fencepost.enter'::regproc)")
		for _, cut := range [][2]string{{"OPERATOR(pg_catalog.<>)", "<>"}, {"OPERATOR(pg_catalog.=)", "="}, {"OPERATOR(pg_catalog.>)", ">"},
			{"pg_catalog.current_setting", "current_setting"}, {"pg_catalog.pg_is_in_recovery", "pg_is_in_recovery"}, {"pg_catalog.set_config", "set_config"},
			{"pg_catalog.pg_advisory_xact_lock_shared", "pg_advisory_xact_lock_shared"},
			{"::pg_catalog.text", "::text"}, {"fencepost.marks", "marks"}} {
			e.mutate("enter", cut[0], cut[1])
			if got := attempt(calls["enter"]); got == "" {
				t.Errorf("enter with %s in place of %s, the control, was not hijacked", cut[1], cut[0])
			}
			e.exec(whole)
		}
		e.mutate("lock_key", "pg_catalog.hashtextextended", "hashtextextended")
		if got := attempt(calls["enter"]); got == "" {
			t.Error("lock_key without a schema of its function, the control, was not hijacked")
		}
	})
}

// application sets up an application: the role that migrates is not a
// superuser, and the application owns its tables and types.
const application = `CREATE ROLE %[1]s_migrator; CREATE ROLE %[1]s_app; GRANT %[1]s_app TO %[1]s_migrator;
	GRANT CREATE ON DATABASE %[2]s TO %[1]s_migrator; CREATE SCHEMA app AUTHORIZATION %[1]s_app;
	SET SESSION AUTHORIZATION %[1]s_migrator; %[3]s; SELECT fencepost.raise('acme', 50, 'l', 1000);
	SET SESSION AUTHORIZATION DEFAULT; GRANT USAGE ON SCHEMA fencepost TO %[1]s_app;
	GRANT EXECUTE ON FUNCTION fencepost.present TO %[1]s_app;
	SET SESSION AUTHORIZATION %[1]s_app;
	CREATE TYPE app.tenant AS ENUM ('acme', 'other'); CREATE TYPE app.pair AS (a text); CREATE DOMAIN app.name AS text;
	CREATE FUNCTION app.evil() RETURNS text LANGUAGE plpgsql AS $$ BEGIN
		UPDATE fencepost.marks SET token = 1; RETURN 'acme';
	EXCEPTION WHEN insufficient_privilege THEN RETURN 'acme'; END $$;
	CREATE FUNCTION app.evil(app.tenant) RETURNS text LANGUAGE sql AS 'SELECT app.evil()';
	CREATE FUNCTION app.evil(app.pair) RETURNS text LANGUAGE sql AS 'SELECT app.evil()';
	CREATE FUNCTION app.evil(app.name) RETURNS text LANGUAGE sql AS 'SELECT app.evil()';
	CREATE FUNCTION app.format(text, app.tenant) RETURNS text LANGUAGE sql AS 'SELECT app.evil()';
	CREATE FUNCTION app.textcat(app.tenant, text) RETURNS text LANGUAGE sql AS 'SELECT app.evil()';
	CREATE OPERATOR app.|| (LEFTARG = app.tenant, RIGHTARG = text, FUNCTION = app.textcat);
	SET SESSION AUTHORIZATION DEFAULT`

// TestNoCodeOfTheApplication: casts, functions, operators and types that the
// application owns do not run with the rights of the trigger's owner, whatever
// type a column has when the trigger is installed and afterwards. The control is
// a trigger that casts the column to text.
func TestNoCodeOfTheApplication(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 0)
	e.exec("DROP SCHEMA fencepost CASCADE")
	name := "sf" + strings.ReplaceAll(e.text("SELECT current_database()"), "-", "_")
	name = name[:min(len(name), 40)]
	database := pgx.Identifier{e.text("SELECT current_database()")}.Sanitize()
	t.Cleanup(func() {
		e.exec(fmt.Sprintf("SET SESSION AUTHORIZATION DEFAULT; DROP SCHEMA app CASCADE; DROP OWNED BY %[1]s_migrator, %[1]s_app; DROP ROLE %[1]s_migrator, %[1]s_app", name))
	})
	conn, err := e.admin.Acquire(t.Context())
	must(t, err)
	defer conn.Release()
	run := func(sql string) error {
		_, err := conn.Conn().PgConn().Exec(t.Context(), sql).ReadAll()
		return err
	}
	must := func(sql string) {
		t.Helper()
		if err := run(sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	must(fmt.Sprintf(application, name, database, sqladmin.MigrationSQL()))
	as := func(role, sql string) error {
		defer must("ROLLBACK; SET SESSION AUTHORIZATION DEFAULT")
		return run("SET SESSION AUTHORIZATION " + name + "_" + role + ";" + sql)
	}
	mark := func() int64 { return e.int("SELECT token FROM fencepost.marks WHERE resource = 'acme'") }
	// A stale write by the application under mark 50, with its schema in front.
	stale := `; BEGIN; SET LOCAL search_path = app, pg_catalog; SELECT fencepost.present('acme', 1, 'l'); INSERT INTO app.orders VALUES (%s); COMMIT`
	attacks := map[string]struct{ column, after, value string }{
		"a cast of an enum":                         {"app.tenant", "CREATE CAST (app.tenant AS text) WITH FUNCTION app.evil(app.tenant) AS IMPLICIT", "'acme'"},
		"a cast of a domain":                        {"app.name", "CREATE CAST (app.name AS text) WITH FUNCTION app.evil(app.name) AS IMPLICIT", "'acme'"},
		"a column that becomes a composite, a cast": {"text", "CREATE CAST (app.pair AS text) WITH FUNCTION app.evil(app.pair) AS IMPLICIT; ALTER TABLE app.orders ALTER tenant TYPE app.pair USING ROW('acme')", "ROW('acme')"},
	}
	for attack, c := range attacks {
		for _, control := range []bool{false, true} {
			must(fmt.Sprintf("SET SESSION AUTHORIZATION %s_app; CREATE TABLE app.orders (tenant %s NOT NULL); SET SESSION AUTHORIZATION DEFAULT", name, c.column))
			whole := e.text("SELECT pg_get_functiondef('fencepost.guard_body'::regproc)")
			if control {
				e.mutate("guard_body", "format('format(''%%s'', %s%I)'", "format('%s%I::text'")
			}
			if err := as("migrator", `SELECT fencepost.install_guard('app.orders', '[{"column": "tenant", "variable": "tenant", "type": ""}]', false, 1000)`); err != nil {
				t.Fatalf("%s: %v", attack, err)
			}
			if err := as("app", c.after); err != nil {
				t.Fatalf("%s: %v", attack, err)
			}
			err := as("app", fmt.Sprintf(stale, c.value))
			ran := mark() != 50 || err == nil
			// PostgreSQL ignores casts of domains, so there is no control for
			// that one.
			if wanted := control && c.column != "app.name"; ran != wanted {
				t.Errorf("%s, control %t: the insert got %v, the mark is %d", attack, control, err, mark())
			}
			e.exec("DROP TABLE app.orders; UPDATE fencepost.marks SET token = 50; DROP CAST IF EXISTS (app.tenant AS text); DROP CAST IF EXISTS (app.pair AS text); DROP CAST IF EXISTS (app.name AS text);" + whole)
		}
	}
	// A role that may rename an enum's values may rename resources: this is
	// refused for another role's table.
	must(fmt.Sprintf("CREATE TABLE app.orders (tenant app.tenant NOT NULL); ALTER TABLE app.orders OWNER TO %s_migrator", name))
	install := `SELECT fencepost.install_guard('app.orders', '[{"column": "tenant", "variable": "tenant", "type": ""}]', false, 1000)`
	if err := as("migrator", install); err == nil || !strings.Contains(err.Error(), "the enum tenant, which must be the table owner's own") {
		t.Errorf("another role's enum: %v", err)
	}
	must(fmt.Sprintf("ALTER TYPE app.tenant OWNER TO %s_migrator", name))
	noError(t, as("migrator", install), "the table owner's own enum")
	wantState(t, as("app", "ALTER TYPE app.tenant RENAME VALUE 'acme' TO 'b'"), pgerr.Privilege, "renaming a value of another role's enum")
	must(fmt.Sprintf("ALTER TYPE app.tenant OWNER TO %s_app", name))
	if got := e.text("SELECT string_agg(problem, ';') FROM fencepost.guard_status()"); !strings.Contains(got, "the enum tenant, which must be the table owner's own") {
		t.Errorf("an enum that changed its owner: %s", got)
	}
}
