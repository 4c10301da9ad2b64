package sqlfence

import (
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
)

// TestSearchPathPinned: every function of the schema resolves names in
// pg_catalog first and in pg_temp last, and those that run with the owner's
// rights are the three that callers need.
func TestSearchPathPinned(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		if loose := e.int(`SELECT count(*) FROM pg_proc WHERE pronamespace = 'fencepost'::regnamespace
			AND proconfig IS DISTINCT FROM ARRAY['search_path=pg_catalog, pg_temp']`); loose != 0 {
			t.Errorf("%d functions have no pinned search_path", loose)
		}
		definers := e.text(`SELECT string_agg(proname, ' ' ORDER BY proname) FROM pg_proc WHERE pronamespace = 'fencepost'::regnamespace AND prosecdef`)
		if definers != "enter raise retire" {
			t.Errorf("SECURITY DEFINER: %s", definers)
		}
	})
}

// evilSQL makes what a caller could put in front of the system's names.
const evilSQL = `CREATE SCHEMA evil;
	CREATE FUNCTION evil.current_setting(text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE 'hijacked'; END $$;
	CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql AS $$ BEGIN RAISE 'hijacked'; END $$;
	CREATE FUNCTION evil.pg_advisory_xact_lock(bigint) RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE 'hijacked'; END $$;
	CREATE FUNCTION evil.pg_advisory_xact_lock_shared(bigint) RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE 'hijacked'; END $$;
	CREATE FUNCTION evil.hashtextextended(text, bigint) RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN RAISE 'hijacked'; END $$;
	CREATE FUNCTION evil.same(text, text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'hijacked'; END $$;
	CREATE FUNCTION evil.above(bigint, bigint) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'hijacked'; END $$;
	CREATE OPERATOR evil.= (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.same);
	CREATE OPERATOR evil.<> (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.same);
	CREATE OPERATOR evil.> (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = evil.above);
	CREATE OPERATOR evil.>= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = evil.above);`

// TestNotHijacked: functions, operators and tables that stand in front of the
// system's on the caller's search_path, or in pg_temp, are not used.
func TestNotHijacked(t *testing.T) {
	const caller = `SET LOCAL search_path = evil, pg_temp, public, pg_catalog; CREATE TEMP TABLE marks (resource text, token bigint, lease_id text) ON COMMIT DROP;`
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
			e.exec("ALTER FUNCTION fencepost." + function + " RESET search_path")
			if got := attempt(call); !strings.Contains(got, "hijacked") {
				t.Errorf("%s without a pinned search_path, the control: %q", function, got)
			}
			e.exec("ALTER FUNCTION fencepost." + function + " SET search_path = pg_catalog, pg_temp")
		}
	})
}
