package sqlfence

import (
	"testing"

	"github.com/fencepost-go/fencepost/guard"
)

// TestRenamedTable (P1, P6, P9): triggers belong to their table and not to its
// name. A new table that gets the old name and triggers for other resources leaves
// them as they are, and the renamed table is listed under the name that it has now.
// In the control the two tables share a trigger function, as they did once, and the
// renamed one admits a lower token and refuses its own holder.
func TestRenamedTable(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		const inv = "CREATE TABLE inv (id int, tenant text NOT NULL, region text NOT NULL)"
		e.exec(inv)
		e.guardBy("inv", "{tenant}")
		e.exec("INSERT INTO fencepost.marks (resource, token, lease_id) VALUES ('a', 10, 'lease-10'), ('eu', 1, 'lease-1')")
		e.exec("ALTER TABLE inv RENAME TO inv_old;" + inv)
		e.wantFindings("renamed", Verification{Triggers: []Trigger{triggerOn([]string{"inv_old"}, "{tenant}")}}, "guarded as public.inv and has been renamed since")
		e.wantFindings("what has the name now", Verification{Triggers: []Trigger{triggerOn([]string{"inv"}, "{tenant}")}}, "not listed", "is missing")
		e.guardBy("inv", "{region}")
		const write = "INSERT INTO inv_old VALUES (1, 'a', 'eu')"
		check := func(what string, stale, current guard.Reason) {
			t.Helper()
			wantReason(t, e.presenting(write, claimOf("a", 1), claimOf("eu", 1)), stale, "%s, a lower token", what)
			wantReason(t, e.presenting(write, claimOf("a", 10)), current, "%s, its holder", what)
		}
		check("a table that was renamed", guard.ReasonStale, guard.ReasonNone)
		tables, err := e.db.Triggers(t.Context())
		if err != nil || len(tables) != 2 || tables[0].Trigger.Table[1] != "inv" || len(tables[0].Findings) > 0 || tables[1].Trigger.Table[1] != "inv_old" ||
			tables[1].Trigger.Resource.String() != "{tenant}" || len(tables[1].Findings) != 1 {
			t.Errorf("listed: %+v, %v", tables, err)
		}
		e.guardBy("inv_old", "{tenant}") // takes note of the name
		e.wantFindings("installed again", Verification{Triggers: []Trigger{triggerOn([]string{"inv_old"}, "{tenant}"), triggerOn([]string{"inv"}, "{region}")}})
		must(t, e.db.RemoveTrigger(t.Context(), []string{"inv"}))
		check("after the triggers of the other are removed", guard.ReasonStale, guard.ReasonNone)
		// The control.
		e.guardBy("inv", "{region}")
		e.exec("CREATE OR REPLACE FUNCTION fencepost." + e.text("SELECT fencepost.guard_name('inv_old'::regclass)") +
			"() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS " +
			e.text("SELECT quote_literal(prosrc) FROM pg_proc WHERE proname = fencepost.guard_name('inv'::regclass)"))
		check("the control", guard.ReasonNone, guard.ReasonMissing)
	})
}
