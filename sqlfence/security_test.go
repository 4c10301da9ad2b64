package sqlfence

import (
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
)

// TestSearchPathPinned: every function of the schema resolves names in
// pg_catalog first and in pg_temp last, or leaves none to be resolved, and
// those that run with the owner's rights are those that callers need.
func TestSearchPathPinned(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		rows, err := e.admin.Query(t.Context(), `SELECT proname::text, prosrc FROM pg_proc WHERE pronamespace = 'fencepost'::regnamespace
			AND proconfig IS DISTINCT FROM ARRAY['search_path=pg_catalog, pg_temp']`)
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		for rows.Next() {
			var name, body string
			if err := rows.Scan(&name, &body); err != nil {
				t.Fatal(err)
			}
			if found := unqualified(body); len(found) != 0 {
				t.Errorf("function %s has no pinned search_path and leaves to the caller's: %q", name, found)
			}
		}
		if rows.Err() != nil {
			t.Fatal(rows.Err())
		}
		definers := e.text(`SELECT string_agg(proname, ' ' ORDER BY proname) FROM pg_proc WHERE pronamespace = 'fencepost'::regnamespace AND prosecdef`)
		if definers != "enter enter_row enter_snapshot guard_problems guard_status holders present raise require reset retire" {
			t.Errorf("SECURITY DEFINER: %s", definers)
		}
	})
}

// evilSQL makes what a caller could put in front of the system's names: each
// operator on the types in use, each function that the functions call, a type.
const evilSQL = `CREATE SCHEMA evil;
	CREATE DOMAIN evil.text AS pg_catalog.text CHECK (pg_catalog.length(VALUE) > 1000);
	DO $do$ DECLARE o record; BEGIN
		FOR o IN SELECT oprname, oprleft::regtype AS l, oprright::regtype AS r, oprresult::regtype AS result FROM pg_operator
			WHERE oprnamespace = 'pg_catalog'::regnamespace AND oprleft = ANY ('{text,bigint,integer,boolean,timestamptz}'::regtype[])
			AND oprright = ANY ('{text,bigint,integer,boolean,timestamptz}'::regtype[]) LOOP
			EXECUTE format('CREATE FUNCTION evil.op(%s, %s) RETURNS %s LANGUAGE plpgsql AS $f$ BEGIN RAISE $$hijacked$$; END $f$', o.l, o.r, o.result);
			EXECUTE format('CREATE OPERATOR evil.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = evil.op)', o.oprname, o.l, o.r);
			EXECUTE format('ALTER FUNCTION evil.op(%s, %s) RENAME TO %I', o.l, o.r, 'op' || o.oprname);
		END LOOP;
		FOR o IN SELECT proname, pg_get_function_identity_arguments(oid) AS args, prorettype::regtype AS result FROM pg_proc
			WHERE pronamespace = 'pg_catalog'::regnamespace AND prokind = 'f' AND NOT proretset AND provariadic = 0
			AND proname IN ('current_setting', 'set_config', 'pg_is_in_recovery', 'clock_timestamp', 'hashtextextended', 'pg_advisory_xact_lock', 'pg_advisory_xact_lock_shared') LOOP
			EXECUTE format('CREATE FUNCTION evil.%I(%s) RETURNS %s LANGUAGE plpgsql AS $f$ BEGIN RAISE $$hijacked$$; END $f$', o.proname, o.args, o.result);
		END LOOP;
	END $do$;`

// TestNotHijacked: functions, operators, types and tables that stand in front
// of the system's on the caller's search_path, or in pg_temp, are not used.
func TestNotHijacked(t *testing.T) {
	const caller = `SET LOCAL search_path = evil, pg_temp, public, pg_catalog;
		CREATE TEMP TABLE marks (resource pg_catalog.text, token bigint, lease_id pg_catalog.text) ON COMMIT DROP;`
	const pinned = "raise retire"
	calls := map[string]string{
		"raise":  "SELECT fencepost.raise('r', 6, 'b', 1000)",
		"enter":  "SELECT fencepost.enter('r', 5, 'a', 1000, 1000)",
		"retire": "SELECT fencepost.retire('infinity', 1000)",
	}
	eachDriver(t, func(t *testing.T, e *env) {
		e.exec(evilSQL)
		attempt := func(call string) string {
			e.putMark("r", guard.Mark{Token: 5, LeaseID: "a"})
			if _, err := e.admin.Exec(t.Context(), "BEGIN;"+caller+call+";COMMIT"); err != nil {
				e.admin.Reset() // the session has evil's search_path until its transaction ends
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
		// Each schema that enter names is needed.
		whole := e.text("SELECT pg_get_functiondef('fencepost.enter'::regproc)")
		for _, cut := range [][2]string{{"OPERATOR(pg_catalog.<>)", "<>"}, {"OPERATOR(pg_catalog.=)", "="}, {"OPERATOR(pg_catalog.>)", ">"},
			{"pg_catalog.current_setting", "current_setting"}, {"pg_catalog.pg_is_in_recovery", "pg_is_in_recovery"}, {"pg_catalog.set_config", "set_config"},
			{"pg_catalog.hashtextextended", "hashtextextended"}, {"pg_catalog.pg_advisory_xact_lock_shared", "pg_advisory_xact_lock_shared"},
			{"::pg_catalog.text", "::text"}, {"fencepost.marks", "marks"}} {
			e.mutate("enter", cut[0], cut[1])
			if got := attempt(calls["enter"]); got == "" {
				t.Errorf("enter with %s in place of %s, the control, was not hijacked", cut[1], cut[0])
			}
			e.exec(whole)
		}
	})
}
