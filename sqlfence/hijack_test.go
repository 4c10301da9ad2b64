package sqlfence

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/migrate"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"
	"github.com/fencepost-go/fencepost/sqlfence/sqlrow"
)

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
	role := pgx.Identifier{"app_" + e.text("SELECT current_database()")}.Sanitize()
	e.exec("CREATE ROLE " + role + "; CREATE SCHEMA shared AUTHORIZATION " + role + "; GRANT USAGE ON SCHEMA shared TO PUBLIC")
	e.Cleanup(func() { e.exec("DROP OWNED BY " + role + " CASCADE; DROP ROLE " + role) })
	e.exec("SET SESSION AUTHORIZATION " + role + ";" + betterSQL + "SET SESSION AUTHORIZATION DEFAULT")
	return []string{"shared, public", "shared, public, pg_catalog"}
}

// roleNames returns names of roles that are dropped at the test's end.
func (e *env) roleNames() *RoleNames {
	name := e.text("SELECT current_database()")
	roles := &RoleNames{Enforcer: "e" + name, Operator: "o" + name, Reader: "r" + name}
	e.Cleanup(func() {
		for _, role := range []string{roles.Enforcer, roles.Operator, roles.Reader} {
			role = pgx.Identifier{role}.Sanitize()
			e.exec("DROP OWNED BY " + role + "; DROP ROLE " + role)
		}
	})
	return roles
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
	someDriver(t, func(t *testing.T, e *env) {
		e.guardWriters()
		e.exec(`CREATE TABLE jobs (id varchar(20) PRIMARY KEY, state text, lease varchar(50) NOT NULL DEFAULT '', last_fencing_token bigint NOT NULL DEFAULT 0); INSERT INTO jobs VALUES ('1', ''), ('2', '');
			CREATE TABLE verified (id text PRIMARY KEY, lease text NOT NULL DEFAULT '', last_fencing_token bigint NOT NULL DEFAULT 0)`)
		e.putMark("r", guard.Mark{Token: 5, LeaseID: "a"})
		role := e.text("SELECT session_user")
		roles := e.roleNames()
		trigger := triggerOn([]string{"parts"}, `{tenant}`)
		next := guard.Token(1)
		for _, path := range e.hijacker() {
			db := e.along(path)
			check := func(what string, err error) {
				if err != nil {
					t.Errorf("%s under %s: %v", what, path, err)
				}
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
			check("InTx", db.fencedAll(t.Context(), []guard.Claim{{Resource: "r", Token: to.Token + 2, LeaseID: "a"}}, &TxOptions{Resolve: true},
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
				check("Takeover", table.Raise(t.Context(), db, claim("1", next), Key{"1"}, nil))
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
	})
}

// TestMigrationRunsNoCodeOfOthers: the same for the migrations of an empty
// database, by Migrate and as a script, whose transaction has its search_path
// back afterwards. The control is the script that does not set one.
func TestMigrationRunsNoCodeOfOthers(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
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
	})
}
