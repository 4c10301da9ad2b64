package main

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// as returns the database's URL for a new login that is a member of the roles.
func as(t *testing.T, database string, pool *pgxpool.Pool, roles ...string) string {
	t.Helper()
	login := "login_" + value[string](t, pool, "SELECT substr(md5(random()::text), 1, 12)")
	exec1(t, pool, "CREATE ROLE "+login+" LOGIN PASSWORD 'x'")
	for _, role := range roles {
		exec1(t, pool, "GRANT "+role+" TO "+login)
	}
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(login, "x")
	return u.String()
}

// The printed roles do what the program promises: the operator's is enough for
// everything that intervenes, the reader's for everything that only reads, and
// no more.
func TestRoles(t *testing.T) {
	t.Parallel()
	database, pool := database(t)
	// Roles belong to the server, which other tests share.
	suffix := "_" + value[string](t, pool, "SELECT substr(md5(random()::text), 1, 12)")
	names := []string{"--issuer", "issuer" + suffix, "--enforcer", "enforcer" + suffix, "--operator", "operator" + suffix, "--reader", "reader" + suffix}
	for range 2 { // it may be run again
		exec1(t, pool, must(t, database, append([]string{"roles"}, names...)...))
	}
	t.Cleanup(func() {
		for _, role := range []string{"issuer", "enforcer", "operator", "reader"} {
			exec1(t, pool, "DROP OWNED BY "+role+suffix)
			exec1(t, pool, "DROP ROLE "+role+suffix)
		}
	})
	operator := as(t, database, pool, "operator"+suffix)
	reader := as(t, database, pool, "reader"+suffix)
	hold(t, pool, "worker-1", "billing", time.Hour)

	for _, line := range []string{
		"list", "show billing", "list --held-for 1h", "audit", "marks list", "marks list --ahead",
	} {
		for _, url := range []string{operator, reader} {
			must(t, url, strings.Fields(line)...)
		}
	}
	for _, line := range []string{
		"force-unlock billing --actor a --reason r --raise --yes", "epoch show", "epoch raise --yes", "advance billing 7 --yes", "advance --floor 7 --yes",
		"purge --older-than 1ms --yes", "marks raise billing 1099511627777 --lease-id l --above-issuer --yes", "marks retire --older-than 1ms --yes", "doctor",
	} {
		if r := fencectl(t, reader, strings.Fields(line)...); r.code != exitNoRights && !strings.HasPrefix(line, "doctor") {
			t.Errorf("reader, %s: exit code %d\n%s", line, r.code, r.errOut)
		}
		r := fencectl(t, operator, strings.Fields(line)...)
		if r.code != exitOK && !(line == "doctor" && r.code == exitUnhealthy) { // fsync is off in tests
			t.Errorf("operator, %s: exit code %d\n%s", line, r.code, r.errOut)
		}
		if line == "doctor" && !strings.Contains(r.out, "not tried: this role or identity may not lease") {
			t.Errorf("operator: %s", r.out)
		}
	}
	// An issuer may issue leases, and doctor says so.
	r := fencectl(t, as(t, database, pool, "issuer"+suffix), "doctor")
	if strings.Contains(r.out, "may not issue") || strings.Contains(r.out, "end to end") {
		t.Errorf("issuer: %+v", r)
	}
	for _, step := range []string{"acquire", "renew", "release"} {
		if !strings.Contains(r.out, "ok      "+step) {
			t.Errorf("issuer: no step %s in\n%s", step, r.out)
		}
	}
	for _, c := range []refusal{
		{"one name for two", []string{"roles", "--issuer", "a", "--enforcer", "a"}, exitUsage, "usage", "must differ"},
		{"a reserved name", []string{"roles", "--reader", "pg_read_all_data"}, exitUsage, "invalid", "pg_read_all_data"},
	} {
		t.Run(c.name, func(t *testing.T) { c.check(t, database) })
	}
}
