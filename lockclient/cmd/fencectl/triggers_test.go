package main

import (
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/internal/testkit"
)

// TestTriggers walks a table from reports to refusals and back by the command alone: each step
// does what it says, what is wrong has its repair, and the control is a write of plain SQL,
// which is let through before, counted while the triggers report and refused while they enforce.
func TestTriggers(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	exec1(t, pool, "CREATE TABLE balances (tenant text PRIMARY KEY, cents bigint NOT NULL); INSERT INTO balances VALUES ('acme', 1)")
	write := func() string {
		t.Helper()
		_, err := pool.Exec(t.Context(), "UPDATE balances SET cents = cents + 1")
		return sqlState(err)
	}
	const template = "{who}:billing-close"
	describe := []string{"balances", template, "--column", "who=tenant"}
	if sql := must(t, "", append([]string{"triggers", "report", "--print"}, describe...)...); !strings.Contains(sql, "fencepost.install_guard(") || !strings.Contains(sql, "true") {
		t.Errorf("printed: %s", sql)
	}
	if state := write(); state != "" {
		t.Fatalf("the control: a write without triggers is refused: %s", state)
	}
	if r := fencectl(t, url, "triggers", "enforce", "balances", "--yes"); r.code != exitNotFound || !strings.Contains(r.errOut, "TEMPLATE") {
		t.Errorf("enforce without triggers: %+v", r)
	}
	if r := fencectl(t, url, append([]string{"triggers", "report"}, describe...)...); r.code != exitUsage || !strings.Contains(r.errOut, "--yes") {
		t.Errorf("without a confirmation: %+v", r)
	}
	must(t, url, append([]string{"triggers", "report", "--yes"}, describe...)...)
	if state := write(); state != "" {
		t.Errorf("a write is refused while the triggers report: %s", state)
	}
	testkit.Eventually(t, "the report", func() bool {
		out := must(t, url, "triggers", "verify")
		return strings.Contains(out, "reports only") && strings.Contains(out, "1 missing")
	})
	must(t, url, "triggers", "enforce", "public.balances", "--yes")
	if state := write(); state != "SF003" {
		t.Errorf("a write without a claim: %q, want SF003", state)
	}
	if out := must(t, url, "triggers", "verify"); !strings.Contains(out, "1 with all their triggers refuse") {
		t.Errorf("verify: %s", out)
	}

	// The owner of a guarded table gets around its triggers.
	role := "app_" + value[string](t, pool, "SELECT substr(md5(random()::text), 1, 12)")
	exec1(t, pool, "CREATE ROLE "+role+" LOGIN; GRANT SELECT, UPDATE ON balances TO "+role)
	t.Cleanup(func() { exec1(t, pool, "DROP OWNED BY "+role+" CASCADE; DROP ROLE "+role) })
	if r := fencectl(t, url, "triggers", "verify", "--role", role); r.code != exitOK || !strings.Contains(r.out, "cannot get around") {
		t.Errorf("a role that only writes: %+v", r)
	}
	exec1(t, pool, "ALTER TABLE balances OWNER TO "+role)
	for _, args := range [][]string{{"triggers", "verify", "--role", role}, {"doctor", "--role", role}} {
		if r := fencectl(t, url, args...); r.code != exitUnhealthy || !strings.Contains(r.out, "so may disable its triggers; let a role that") {
			t.Errorf("%q for the owner: %+v", args, r)
		}
	}
	exec1(t, pool, "ALTER TABLE balances OWNER TO CURRENT_USER")

	// A trigger that somebody disabled is found, with its repair, which works.
	trigger := value[string](t, pool, "SELECT tgname FROM pg_trigger WHERE tgrelid = 'balances'::regclass AND NOT tgisinternal AND tgname LIKE 'fencepost%' ORDER BY tgname LIMIT 1")
	exec1(t, pool, `ALTER TABLE balances DISABLE TRIGGER "`+trigger+`"`)
	r := fencectl(t, url, "triggers", "verify")
	if r.code != exitUnhealthy || !strings.Contains(r.out, "run fencectl triggers enforce public.balances") {
		t.Errorf("a disabled trigger: %+v", r)
	}
	must(t, url, "triggers", "enforce", "public.balances", "--yes")
	must(t, url, "triggers", "verify")

	if out := must(t, url, "triggers", "verify"); !strings.Contains(out, "public.balances") || !strings.Contains(out, template) {
		t.Errorf("verify does not say which tables there are: %s", out)
	}

	// Another template makes other claims count: that is not done by the way.
	other := []string{"triggers", "enforce", "balances", "x:{tenant}:other", "--yes"}
	if r := fencectl(t, url, other...); r.code != exitRefused || !strings.Contains(r.errOut, template) || !strings.Contains(r.errOut, "x:{tenant}:other") || !strings.Contains(r.errOut, "--replace") {
		t.Errorf("another template: %+v", r)
	}
	if out := must(t, url, "triggers", "verify"); !strings.Contains(out, template) {
		t.Errorf("the refused template was installed: %s", out)
	}
	must(t, url, append([]string{"triggers", "enforce", "--yes"}, describe...)...) // the same again
	must(t, url, append(other, "--replace")...)
	if out := must(t, url, "triggers", "verify"); strings.Contains(out, template) || !strings.Contains(out, "x:{tenant}:other") {
		t.Errorf("the template was not replaced: %s", out)
	}
	if r := fencectl(t, url, "triggers", "report", "nosuch", "--yes"); r.code != exitNotFound || !strings.Contains(r.errOut, "no table nosuch") {
		t.Errorf("a table that does not exist: %+v", r)
	}

	must(t, url, "triggers", "remove", "balances", "--yes")
	if state := write(); state != "" {
		t.Errorf("a write is refused without triggers: %s", state)
	}
	for _, args := range [][]string{
		{"triggers", "install", "a.b.c", template, "--yes"}, {"triggers", "install", "balances", "{", "--yes"},
		{"triggers", "install", "balances", template, "--column", "other=x", "--yes"}, {"triggers", "install", "--yes"},
	} {
		if r := fencectl(t, url, args...); r.code != exitUsage {
			t.Errorf("%q: %+v", args, r)
		}
	}
}
