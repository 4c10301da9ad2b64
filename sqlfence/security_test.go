package sqlfence

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/migrate"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"
	"github.com/fencepost-go/fencepost/sqlfence/sqlrow"
)

// TestSearchPathPinned: every function of the schema resolves names in
// pg_catalog first and in pg_temp last, or leaves none to be resolved, and
// those that run with the owner's rights are those that callers need.
func TestSearchPathPinned(t *testing.T) {
	e := someEnv(t)
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
	if definers != "enter enter_row enter_snapshot guard_problems guard_status holders mark present raise report require reset retire" {
		t.Errorf("SECURITY DEFINER: %s", definers)
	}
}

// TestNotHijacked: functions, operators, types and tables that stand in front
// of the system's on the caller's search_path, or in pg_temp, are not used.
func TestNotHijacked(t *testing.T) {
	const caller = `SET LOCAL search_path = shared, pg_temp, public, pg_catalog;
		CREATE TEMP TABLE marks (resource pg_catalog.text, token bigint, lease_id pg_catalog.text) ON COMMIT DROP;`
	const pinned = "raise retire"
	calls := map[string]string{
		"raise":  "SELECT fencepost.raise('r', 6, 'b', 1000)",
		"enter":  "SELECT fencepost.enter('r', 5, 'a', 1000, 1000)",
		"retire": "SELECT fencepost.retire('infinity', 1000, 1000)",
	}
	e := someEnv(t)
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
	for _, cut := range [][2]string{{"OPERATOR(pg_catalog.<>)", "<>"}, {"OPERATOR(pg_catalog.=)", "="}, {"OPERATOR(pg_catalog.>)", ">"},
		{"pg_catalog.current_setting", "current_setting"}, {"pg_catalog.pg_is_in_recovery", "pg_is_in_recovery"}, {"pg_catalog.set_config", "set_config"},
		{"pg_catalog.pg_advisory_xact_lock_shared", "pg_advisory_xact_lock_shared"},
		{"::pg_catalog.text", "::text"}, {"fencepost.marks", "marks"}} {
		undo := e.mutate("enter", cut[0], cut[1])
		if got := attempt(calls["enter"]); got == "" {
			t.Errorf("enter with %s in place of %s, the control, was not hijacked", cut[1], cut[0])
		}
		undo()
	}
	e.mutate("lock_key", "pg_catalog.hashtextextended", "hashtextextended")
	if got := attempt(calls["enter"]); got == "" {
		t.Error("lock_key without a schema of its function, the control, was not hijacked")
	}
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
		"a cast of an enum":  {"app.tenant", "CREATE CAST (app.tenant AS text) WITH FUNCTION app.evil(app.tenant) AS IMPLICIT", "'acme'"},
		"a cast of a domain": {"app.name", "CREATE CAST (app.name AS text) WITH FUNCTION app.evil(app.name) AS IMPLICIT", "'acme'"},
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
	// The type of a guarded column cannot become another one, whose cast may be anything.
	must(fmt.Sprintf("SET SESSION AUTHORIZATION %s_app; CREATE TABLE app.orders (tenant text NOT NULL); SET SESSION AUTHORIZATION DEFAULT", name))
	noError(t, as("migrator", `SELECT fencepost.install_guard('app.orders', '[{"column": "tenant", "variable": "tenant", "type": ""}]', false, 1000)`))
	wantState(t, as("app", "ALTER TABLE app.orders ALTER tenant TYPE app.pair USING ROW('acme')"), pgerr.NotSupported, "another type of a guarded column")
	must("DROP TABLE app.orders")
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

// betterSQL is what an application's role can create if it may create objects in
// a schema on other roles' search_path: with pg_catalog in front, as it is
// unless a path names it, overloads that match better than the system's own; for
// paths that name pg_catalog last, everything that the queries use. Each object
// reports when it is used.
const betterSQL = `CREATE FUNCTION shared.hijack() RETURNS boolean LANGUAGE plpgsql AS $f$ BEGIN RAISE 'hijacked, run by %', current_user; END $f$;
	DO $do$ DECLARE o record; n integer := 0; BEGIN
		FOR o IN SELECT oprname, oprleft::regtype AS l, oprright::regtype AS r, oprresult::regtype AS result FROM pg_operator
			WHERE oprnamespace = 'pg_catalog'::regnamespace AND oprleft = ANY ('{text,name,oid,bigint,integer,smallint,boolean,"char",timestamptz}'::regtype[])
			AND oprright = ANY ('{text,name,oid,bigint,integer,smallint,boolean,"char",timestamptz}'::regtype[])
			UNION ALL SELECT name, lhs, 'varchar', 'boolean' FROM unnest('{=,<>,>,>=}'::name[]) name, unnest('{text,varchar}'::regtype[]) lhs
			UNION ALL SELECT '=', 'oid', 'regclass', 'boolean' UNION ALL SELECT '=', 'xid8', 'text', 'boolean' UNION ALL SELECT '||', 'text', 'name', 'text' LOOP
			n := n + 1;
			EXECUTE format('CREATE FUNCTION shared.op%s(%s, %s) RETURNS %s LANGUAGE plpgsql AS $f$ BEGIN PERFORM shared.hijack(); END $f$', n, o.l, o.r, o.result);
			EXECUTE format('CREATE OPERATOR shared.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = shared.op%s)', o.oprname, o.l, o.r, n);
		END LOOP;
		FOR o IN SELECT proname, pg_get_function_identity_arguments(oid) AS args, prorettype::regtype AS result FROM pg_proc
			WHERE pronamespace = 'pg_catalog'::regnamespace AND prokind = 'f' AND NOT proretset AND provariadic = 0 AND proname = ANY (
				'{current_setting,set_config,pg_is_in_recovery,clock_timestamp,hashtextextended,pg_advisory_xact_lock,pg_advisory_xact_lock_shared,to_regclass,format_type,left,
				pg_get_userbyid,pg_has_role,has_schema_privilege,has_table_privilege,gen_random_uuid,pg_terminate_backend,regexp_replace,octet_length}')
			UNION ALL SELECT 'hashtextextended', 'text, integer', 'bigint' UNION ALL SELECT 'format', 'text', 'text' UNION ALL SELECT 'format', 'text, text', 'text'
			UNION ALL SELECT 'format', 'text, name', 'text' UNION ALL SELECT 'format', 'text, name, text', 'text' UNION ALL SELECT 'to_regclass', 'varchar', 'regclass' LOOP
			EXECUTE format('CREATE FUNCTION shared.%I(%s) RETURNS %s LANGUAGE plpgsql AS $f$ BEGIN PERFORM shared.hijack(); END $f$', o.proname, o.args, o.result);
		END LOOP;
		FOR o IN SELECT * FROM unnest('{text,name,oid,regclass,regtype,regnamespace,regprocedure,json,jsonb,timestamptz,xid8}'::text[]) AS type LOOP
			EXECUTE format('CREATE DOMAIN shared.%I AS pg_catalog.%I CHECK (shared.hijack())', o.type, o.type);
		END LOOP;
	END $do$;`

// hijacker sets up an application: a role that owns a schema on the operators'
// search_path, and nothing of schema fencepost. It returns paths with that
// schema.
func (e *env) hijacker() (paths []string) {
	e.Helper()
	role := e.roleName("app")
	e.exec("CREATE ROLE " + role + "; CREATE SCHEMA shared AUTHORIZATION " + role + "; GRANT USAGE ON SCHEMA shared TO PUBLIC")
	e.Cleanup(func() { e.exec("DROP OWNED BY " + role + " CASCADE; DROP ROLE " + role) })
	e.exec("SET SESSION AUTHORIZATION " + role + ";" + betterSQL + "SET SESSION AUTHORIZATION DEFAULT")
	return []string{"shared, public", "shared, public, pg_catalog"}
}

// along opens a DB whose sessions have a search_path.
func (e *env) along(path string) fence {
	return e.open(nil, func(c *pgx.ConnConfig) { c.RuntimeParams["search_path"] = path })
}

// hijacked runs SQL under a search_path, in a transaction that is rolled back,
// and reports whether it ran what the application put there.
func (e *env) hijacked(path, sql string) bool {
	e.Helper()
	conn, err := pgx.Connect(e.Context(), e.url)
	must(e, err)
	defer conn.Close(e.Context())
	_, err = conn.PgConn().Exec(e.Context(), "BEGIN; SET LOCAL search_path = "+path+";"+sql+"; ROLLBACK").ReadAll()
	return err != nil && strings.Contains(err.Error(), "hijacked")
}

// TestOperatorsRunNoCodeOfOthers: what another role put into a schema on the
// caller's search_path, in front of the system's names or as a better matching
// overload, is not run by the calls of operators, migrators and holders. The
// control is the plain SQL of some of them, under the same path.
func TestOperatorsRunNoCodeOfOthers(t *testing.T) {
	e := someEnv(t)
	e.guardWriters()
	e.exec(`CREATE TABLE jobs (id varchar(20) PRIMARY KEY, state text, lease varchar(50) NOT NULL DEFAULT '', last_fencing_token bigint NOT NULL DEFAULT 0); INSERT INTO jobs VALUES ('1', ''), ('2', '');
		CREATE TABLE verified (id text PRIMARY KEY, lease text NOT NULL DEFAULT '', last_fencing_token bigint NOT NULL DEFAULT 0)`)
	e.putMark("r", guard.Mark{Token: 5, LeaseID: "a"})
	role := e.text("SELECT session_user")
	roles := e.testRoles(t)
	trigger := triggerOn([]string{"parts"}, `{tenant}`)
	next := guard.Token(1)
	for _, path := range e.hijacker() {
		db := e.along(path)
		check := func(what string, err error) {
			noError(t, err, "%s under %s", what, path)
		}
		check("InstallTrigger", db.InstallTrigger(t.Context(), trigger))
		found, err := db.Verify(t.Context(), Verification{Role: role, Triggers: []Trigger{trigger},
			Tables: []*Table{e.table("verified", []string{"id"}, &TableOptions{LeaseColumn: "lease"})}})
		check("Verify", err)
		if !slices.Equal(found, []Finding{{Subject: "role " + role, Problem: "is a superuser, or a member of one, whom nothing stops"}}) {
			t.Errorf("Verify under %s: %v", path, found)
		}
		_, err = db.Triggers(t.Context())
		check("Triggers", err)
		for m, err := range db.Marks(t.Context(), "") {
			check("Marks "+m.Resource, err)
		}
		for _, err := range db.Resets(t.Context(), 0) {
			check("Resets", err)
		}
		mark, err := db.Mark(t.Context(), "r")
		check("Mark", err)
		to := guard.Mark{Token: mark.Token + 1, LeaseID: "a"}
		check("Reset", db.Reset(t.Context(), "r", mark, to, 100, "ann", "test"))
		check("Raise", db.Raise(t.Context(), guard.Claim{Resource: "r", Token: to.Token + 1, LeaseID: "a"}))
		check("MigrateRoles", db.MigrateRoles(t.Context(), roles))
		check("InTx", db.fenced(t.Context(), guard.Claim{Resource: "r", Token: to.Token + 2, LeaseID: "a"},
			func(ctx context.Context, tx testTx) error { return tx.present(ctx, claimOf("p", 1)) }))
		check("RemoveTrigger", db.RemoveTrigger(t.Context(), []string{"parts"}))
		check("Migrate", db.Migrate(t.Context()))
		template, err := guard.NewTemplate("job:{id}")
		check("template", err)
		jobs, err := sqlrow.NewTable([]string{"jobs"}, []string{"id"}, template, &TableOptions{LeaseColumn: "lease", Rule: guard.SameOrNewer})
		check("sqlrow.NewTable", err)
		plain, err := sqlrow.NewTable([]string{"jobs"}, []string{"id"}, template, &TableOptions{Rule: guard.SameOrNewer})
		check("sqlrow.NewTable", err)
		for _, table := range []*Table{jobs, plain} {
			claim := func(id string, token guard.Token) guard.Claim {
				return guard.Claim{Resource: "job:" + id, Token: token, LeaseID: "l"}
			}
			next++
			check("Update", table.Update(t.Context(), db, claim("1", next), Key{"1"}, Set{"state": "x"}))
			next++
			check("Upsert", table.Upsert(t.Context(), db, claim("1", next), Key{"1"}, Set{"state": "x"}))
			next++
			check("Table.Raise", table.Raise(t.Context(), db, claim("1", next), Key{"1"}, nil))
			wantReason(t, table.Update(t.Context(), db, claim("1", next-1), Key{"1"}, Set{"state": "y"}), guard.ReasonStale, "a stale Update under %s", path)
		}
		for what, sql := range map[string]string{
			"format":      "SELECT format('%s', 'x'::pg_catalog.text)",
			"to_regclass": "SELECT count(*) FROM pg_catalog.pg_class WHERE oid = to_regclass('jobs')",
			"the salt":    "SELECT hashtextextended('', 0)",
		} {
			if !e.hijacked(path, sql) {
				t.Errorf("%s, the control, was not hijacked under %s", what, path)
			}
		}
	}
}

// TestMigrationRunsNoCodeOfOthers: the same for the migrations of an empty
// database, by Migrate and as a script, whose transaction has its search_path
// back afterwards. The control is the script that does not set one.
func TestMigrationRunsNoCodeOfOthers(t *testing.T) {
	e := someEnv(t)
	for _, path := range e.hijacker() {
		db := e.along(path)
		e.exec("DROP SCHEMA fencepost CASCADE")
		if err := db.Migrate(t.Context()); err != nil {
			t.Errorf("Migrate under %s: %v", path, err)
			continue
		}
		whole := e.text("SELECT string_agg(pg_get_functiondef(oid), '' ORDER BY oid) FROM pg_proc WHERE pronamespace = 'fencepost'::regnamespace")
		if strings.Contains(whole, "shared.") {
			t.Errorf("Migrate under %s left a name of the application's", path)
		}
		e.exec("DROP SCHEMA fencepost CASCADE")
		conn, err := pgx.Connect(t.Context(), e.url)
		must(t, err)
		defer conn.Close(t.Context())
		result, err := conn.PgConn().Exec(t.Context(), "BEGIN; SET LOCAL search_path = "+path+";"+sqladmin.MigrationSQL()+"; SHOW search_path; COMMIT").ReadAll()
		if err != nil {
			t.Errorf("the script under %s: %v", path, err)
			continue
		}
		if got := string(result[len(result)-2].Rows[0][0]); got != path {
			t.Errorf("after the script the search_path is %s, want %s", got, path)
		}
		e.exec("DROP SCHEMA fencepost CASCADE")
		if !e.hijacked(path, strings.ReplaceAll(sqladmin.MigrationSQL(), migrate.Pin, "")) {
			t.Errorf("the script without a search_path of its own, the control, was not hijacked under %s", path)
		}
		must(t, e.db.Migrate(t.Context()))
	}
}

var (
	sqlText     = regexp.MustCompile(`'(?:[^']|'')*'|--[^\n]*`)
	sqlWords    = regexp.MustCompile(`"[^"]*"|[A-Za-z_][A-Za-z0-9_]*|::|:=|[-+*/<>=~!@#%^&|?]+|\S`)
	sqlOperator = regexp.MustCompile(`^[-+*/<>=~!@#%^&|?]+$`)
	sqlName     = regexp.MustCompile(`^[A-Za-z_]`)
)

// unqualified returns what in the body of a function is looked up on the
// caller's search_path: operators outside OPERATOR(schema.x), functions, types
// after ::, collations and tables without a schema, and words of the language
// that stand for an operator. It knows only as much SQL as such functions may
// use and reports everything else as unqualified.
func unqualified(body string) (found []string) {
	words := sqlWords.FindAllString(sqlText.ReplaceAllString(body, " "), -1)
	at := func(i int) string {
		if i < 0 || i >= len(words) {
			return ""
		}
		return words[i]
	}
	schema := func(i int) bool { // a qualified name begins at i
		return (at(i) == "pg_catalog" || at(i) == "fencepost") && at(i+1) == "."
	}
	for i, word := range words {
		bad := false
		switch upper := strings.ToUpper(word); {
		case sqlOperator.MatchString(word):
			bad = !(at(i-1) == "." && at(i-2) == "pg_catalog" && at(i-3) == "(" && at(i-4) == "OPERATOR" && at(i+1) == ")")
		case word == "::", upper == "COLLATE", upper == "FROM", upper == "JOIN", upper == "INTO", upper == "UPDATE":
			bad = !schema(i + 1)
		case upper == "IN", upper == "BETWEEN", upper == "LIKE", upper == "ILIKE", upper == "SIMILAR", upper == "NULLIF", upper == "CAST",
			upper == "DISTINCT", upper == "ANY", upper == "SOME", upper == "ALL", upper == "USING", upper == "EXECUTE", upper == "DECLARE",
			upper == "CASE" && strings.ToUpper(at(i+1)) != "WHEN":
			bad = true
		case upper == "COALESCE": // grammar: its operands bring no operator
		case upper == "IF", upper == "AND", upper == "OR", upper == "NOT", upper == "WHEN", upper == "THEN", upper == "OPERATOR":
		case sqlName.MatchString(word) && at(i+1) == "(":
			bad = !schema(i - 2)
		}
		if bad {
			found = append(found, word+" "+at(i+1))
		}
	}
	return found
}

// TestUnqualified: the check finds each kind of name when its schema is
// removed.
func TestUnqualified(t *testing.T) {
	const body = `BEGIN
		IF (CASE WHEN p OPERATOR(pg_catalog.>) 0 AND pg_catalog.f(p::pg_catalog.text COLLATE pg_catalog."C") IS NULL THEN true END) THEN
			PERFORM FROM fencepost.marks m; -- a > b
			RAISE EXCEPTION 'a = b';
		END IF;
	END`
	if found := unqualified(body); len(found) != 0 {
		t.Fatalf("a qualified body: %q", found)
	}
	for _, cut := range [][2]string{{"OPERATOR(pg_catalog.>)", ">"}, {"pg_catalog.f(", "f("}, {"::pg_catalog.", "::"}, {"COLLATE pg_catalog.", "COLLATE "},
		{"fencepost.marks", "marks"}, {"p OPERATOR(pg_catalog.>) 0", "p IN (1)"}, {"p OPERATOR(pg_catalog.>) 0", "p IS DISTINCT FROM 1"},
		{"CASE WHEN p OPERATOR(pg_catalog.>) 0", "CASE p WHEN 0"}, {"BEGIN", "DECLARE x text; BEGIN"}, {"pg_catalog.f(", "evil.f("}} {
		if !strings.Contains(body, cut[0]) || len(unqualified(strings.Replace(body, cut[0], cut[1], 1))) == 0 {
			t.Errorf("%s in place of %s is not found", cut[1], cut[0])
		}
	}
}
