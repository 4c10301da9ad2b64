package main

import (
	"bytes"
	"context"
	"regexp"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/faultproxy"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"
)

// TestDoctorTriesTheServer: on a server whose advisory locks are functions that return,
// as on some that only speak PostgreSQL's protocol, doctor fails and says what is
// lacking; the same server without that is the control.
func TestDoctorTriesTheServer(t *testing.T) {
	t.Parallel()
	direct, _ := database(t)
	at, proxy := proxied(t, direct)
	lack := regexp.MustCompile(checkFail + ` +locks and snapshots .*an advisory lock does not exclude another session's`)
	if r := fencectl(t, at, "doctor"); strings.Contains(r.out, "locks and snapshots") {
		t.Errorf("the control: exit %d, %s", r.code, r.out)
	}
	proxy.Set(func(m *faultproxy.Message) {
		if m.Answer {
			return
		}
		for _, lock := range []string{"pg_advisory_xact_lock(", "pg_advisory_xact_lock_shared("} { // as long as before
			m.Data = bytes.ReplaceAll(m.Data, []byte("pg_catalog."+lock), []byte("pg_catalog.abs"+strings.Repeat(" ", len(lock)-4)+"("))
		}
	})
	if r := fencectl(t, at, "doctor"); r.code != exitUnhealthy || !lack.MatchString(r.out) {
		t.Errorf("exit %d, %s\n%s", r.code, r.out, r.errOut)
	}
}

// TestDoctorInterrupted: an interrupt in the middle is no finding.
func TestDoctorInterrupted(t *testing.T) {
	t.Parallel()
	direct, _ := database(t)
	for _, word := range []string{"fencepost.acquire", "fencepost.migrations", "pg_control_system"} {
		at, proxy := proxied(t, direct)
		ctx, interrupt := context.WithCancel(t.Context())
		proxy.Set(func(m *faultproxy.Message) {
			if !m.Answer && bytes.Contains(m.Data, []byte(word)) {
				interrupt()
			}
		})
		var out, errOut strings.Builder
		code := run(ctx, onDatabase(at, []string{"doctor", "--timeout", "1m"}), nil, &out, &errOut)
		if ctx.Err() == nil || code != exitInterrupted {
			t.Errorf("%s: %v, exit code %d\n%s%s", word, ctx.Err(), code, out.String(), errOut.String())
		}
		interrupt()
	}
}

// TestDoctorShowsReports: doctor says what triggers in report-only mode would have
// refused.
func TestDoctorShowsReports(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	exec1(t, pool, "CREATE TABLE bills (tenant text NOT NULL)")
	err := sqladmin.Pgx(pool).InstallTrigger(t.Context(), sqladmin.Trigger{
		Table: []string{"bills"}, Resource: guard.Must(guard.NewTemplate("bill:{tenant}")), Columns: map[string]string{"tenant": "tenant"}, InsecureReportOnly: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	if r := fencectl(t, url, "doctor"); !strings.Contains(r.out, "bills: reports only, refuses nothing; would have refused nothing so far") {
		t.Errorf("exit %d, %s", r.code, r.out)
	}
	if err := fenced(t, pool).Raise(t.Context(), guard.Claim{Resource: "bill:a", Token: 5, LeaseID: "l"}); err != nil {
		t.Fatal(err)
	}
	exec1(t, pool, "INSERT INTO bills VALUES ('a'), ('b'), ('b')") // two resources without a claim
	exec1(t, pool, "WITH p AS MATERIALIZED (SELECT fencepost.present('bill:a', 4, 'k')) INSERT INTO bills SELECT 'a' FROM p")
	if r := fencectl(t, url, "doctor"); !strings.Contains(r.out, "bills: reports only, refuses nothing; would have refused 2 missing, 1 stale") {
		t.Errorf("exit %d, %s", r.code, r.out)
	}
}

// TestDoctorFindsObjects: a function of either part of the schema that was dropped, or changed, is
// found and named, by doctor and by triggers verify; what doctor says to run makes it green. The
// control is the schema as it was migrated.
func TestDoctorFindsObjects(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	failures := func() string { // of doctor, but for fsync, which the tests' server has off
		t.Helper()
		var lines []string
		for line := range strings.Lines(fencectl(t, url, "doctor").out) {
			if strings.HasPrefix(line, checkFail) && !strings.Contains(line, " fsync ") {
				lines = append(lines, line)
			}
		}
		return strings.Join(lines, "")
	}
	if got := failures(); got != "" {
		t.Fatalf("control: %s", got)
	}
	exec1(t, pool, `GRANT EXECUTE ON FUNCTION fencepost.judge TO pg_monitor; GRANT SELECT ON fencepost.audit, fencepost.mark_resets TO pg_monitor;
		ALTER DEFAULT PRIVILEGES IN SCHEMA fencepost GRANT EXECUTE ON FUNCTIONS TO pg_monitor`)
	for _, one := range []struct{ sql, found string }{
		{"DROP FUNCTION fencepost.enter, fencepost.raise", "function fencepost.enter: is missing"},
		{"DROP FUNCTION fencepost.acquire", "function fencepost.acquire is missing"},
		{"DROP FUNCTION fencepost.keep_resets() CASCADE", "trigger fencepost.keep_resets: is missing"},
		{"DROP FUNCTION fencepost.guard_status", "function fencepost.guard_status: is missing"},
		{"DROP FUNCTION fencepost.lock_salt", "function fencepost.lock_salt: is missing"},
		{"DROP INDEX fencepost.audit_at", "index fencepost.audit_at is missing"},
		{"CREATE OR REPLACE FUNCTION fencepost.judge(p_resource text, p_token bigint, p_lease text, p_may_raise boolean) RETURNS text LANGUAGE sql AS 'SELECT ''current''::text'", "function fencepost.judge: is not the one of this build"},
		{"GRANT EXECUTE ON FUNCTION fencepost.reset TO PUBLIC", "function fencepost.reset: may be executed by everybody"},
		{"ALTER TABLE fencepost.audit DISABLE TRIGGER audit_is_append_only", "trigger fencepost.audit_is_append_only is not enabled ALWAYS"},
	} {
		exec1(t, pool, one.sql)
		if got := failures(); !strings.Contains(got, one.found) || !strings.Contains(got, "fencectl migrate --repair") {
			t.Errorf("%s: %s", one.sql, got)
		}
		if strings.Contains(one.found, ": ") { // of the marks
			if r := fencectl(t, url, "triggers", "verify"); r.code != exitUnhealthy || !strings.Contains(r.out, one.found) {
				t.Errorf("triggers verify: %s: exit %d\n%s", one.sql, r.code, r.out)
			}
		}
		must(t, url, "migrate", "--repair", "--yes")
		if got := failures(); got != "" {
			t.Errorf("%s, repaired: %s", one.sql, got)
		}
	}
	if !value[bool](t, pool, `SELECT has_function_privilege('pg_monitor', 'fencepost.judge(text, bigint, text, boolean)', 'EXECUTE')
		AND has_table_privilege('pg_monitor', 'fencepost.audit', 'SELECT') AND has_table_privilege('pg_monitor', 'fencepost.mark_resets', 'SELECT')`) {
		t.Error("a repair took a right on what was there")
	}
	if value[bool](t, pool, "SELECT has_function_privilege('pg_monitor', 'fencepost.lock_salt()', 'EXECUTE')") {
		t.Error("a repair left what default privileges give")
	}
	if got := must(t, url, "migrate", "--repair", "--yes"); strings.Contains(got, "made again") {
		t.Errorf("with nothing to repair: %s", got)
	}
	// What a repair cannot make it says, with what it did make.
	exec1(t, pool, "DROP FUNCTION fencepost.enter; CREATE FUNCTION fencepost.raise(text) RETURNS void LANGUAGE sql AS ''; ALTER TABLE fencepost.marks DROP COLUMN raised_at; ALTER TABLE fencepost.audit DROP COLUMN reason")
	if r := fencectl(t, url, "migrate", "--repair", "--yes"); r.code != exitPartial {
		t.Errorf("a damaged schema: exit %d\n%s", r.code, r.out+r.errOut)
	} else {
		for _, said := range []string{"fencepost.enter", "fencepost.marks.raised_at", "fencepost.audit.reason", "fencepost.raise(text)", "backup"} {
			if !strings.Contains(r.out+r.errOut, said) {
				t.Errorf("a damaged schema: nothing of %s in\n%s", said, r.out+r.errOut)
			}
		}
	}
}
