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
