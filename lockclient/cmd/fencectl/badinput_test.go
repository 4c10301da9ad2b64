package main

import (
	"encoding/json"
	"fmt"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin/pgadmin"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"
)

// state is everything that a refused command must not have changed.
const state = `SELECT coalesce(json_agg(l ORDER BY l.resource), '[]')::text || coalesce((SELECT json_agg(m ORDER BY m.resource) FROM fencepost.marks m)::text, '')
	|| (SELECT count(*) FROM fencepost.audit) || (SELECT json_agg(e) FROM fencepost.epoch e) FROM fencepost.leases l`

type refusal struct {
	name   string
	args   []string
	code   int
	reason string
	says   string
}

// Every refusal has its exit code, one line for people and an object for
// programs, and changes nothing.
func TestBadInput(t *testing.T) {
	t.Parallel()
	database, pool := database(t)
	first := hold(t, pool, "worker-1", "r", time.Hour)
	if err := first.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	hold(t, pool, "worker-2", "r", time.Hour)
	if err := fenced(t, pool).Raise(t.Context(), first.Claim()); err != nil {
		t.Fatal(err)
	}
	unlock := func(more ...string) []string {
		return append([]string{"force-unlock", "r", "--yes"}, more...)
	}
	before := value[string](t, pool, state)
	for _, c := range []refusal{
		{"no command", []string{"frobnicate"}, exitUsage, "usage", "no command frobnicate"},
		{"a command misspelt", []string{"lits"}, exitUsage, "usage", "did you mean list?"},
		{"a flag that is none", []string{"list", "--frob"}, exitUsage, "usage", "unknown flag frob"},
		{"a flag without its value", []string{"list", "--limit"}, exitUsage, "usage", "limit"},
		{"one argument too many", []string{"show", "r", "s"}, exitUsage, "usage", "s is one argument too many"},
		{"an argument is missing", []string{"show"}, exitUsage, "usage", "RESOURCE is missing"},
		{"a state that is none", []string{"list", "--state", "odd"}, exitUsage, "usage", "must be held, expired or free, not odd"},
		{"a negative limit", []string{"list", "--limit=-1"}, exitUsage, "usage", "--limit"},
		{"a duration that is none", []string{"purge", "--older-than", "7 days"}, exitUsage, "usage", "7 days"},
		{"purge of all", []string{"purge", "--older-than=0s", "--yes"}, exitUsage, "usage", "--older-than"},
		{"a time that is none", []string{"audit", "--from", "yesterday"}, exitUsage, "usage", "yesterday"},
		{"a time range backwards", []string{"audit", "--from", "2026-01-02T00:00:00Z", "--to", "2026-01-01T00:00:00Z"}, exitUsage, "invalid", "before"},

		{"unknown resource, show", []string{"show", "nobody"}, exitNotFound, "not_found", "no lease on nobody"},
		{"unknown resource, force-unlock", []string{"force-unlock", "nobody", "--actor", "a", "--reason", "r", "--yes"}, exitNotFound, "not_found", "no lease on nobody"},
		{"malformed resource", []string{"show", "a\x1b[2J"}, exitUsage, "invalid", `"a\x1b[2J"`},
		{"empty resource", []string{"show", ""}, exitUsage, "invalid", "resource"},
		{"malformed prefix, list", []string{"list", "a\nb"}, exitUsage, "invalid", `pattern "a\nb"`},
		{"malformed prefix, not UTF-8", []string{"audit", "a\xff"}, exitUsage, "invalid", `pattern "a\xff"`},
		{"malformed prefix, too long", []string{"list", strings.Repeat("x", 513)}, exitUsage, "invalid", "at most 512"},
		{"malformed token", []string{"advance", "r", "+5", "--yes"}, exitUsage, "invalid", `token "+5"`},
		{"token zero", []string{"marks", "raise", "r", "0", "--lease-id", "l", "--yes"}, exitUsage, "invalid", `token "0"`},
		{"token above what may be advanced", []string{"advance", "--floor", "9223372036854775806", "--yes"}, exitUsage, "invalid", "must be at most"},

		{"no actor", unlock("--reason", "it hangs"), exitUsage, "usage", "--actor"},
		{"no reason", unlock("--actor", "ana"), exitUsage, "usage", "--reason"},
		{"a reason of only spaces", unlock("--actor", "ana", "--reason", " \t "), exitUsage, "usage", "more than spaces"},
		{"a reason of only wide spaces", unlock("--actor", "ana", "--reason", "\u3000\u00a0"), exitUsage, "usage", "more than spaces"},
		{"an actor of only spaces", unlock("--actor", "  ", "--reason", "it hangs"), exitUsage, "usage", "--actor"},
		{"a reason with an escape", unlock("--actor", "ana", "--reason", "it\x1b hangs"), exitUsage, "invalid", `reason "it\x1b hangs"`},
		{"an empty expectation", unlock("--actor", "ana", "--reason", "it hangs", "--expect", ""), exitUsage, "usage", "--expect"},
		{"the lease of a successor", unlock("--actor", "ana", "--reason", "it hangs", "--expect", first.ID()), exitRefused, "lease_changed", "worker-2"},
		{"nobody to ask about the schema", []string{"migrate"}, exitUsage, "usage", "--yes"},
		{"nobody to ask", []string{"force-unlock", "r", "--actor", "ana", "--reason", "it hangs"}, exitUsage, "usage", "--yes"},
		{"nobody to ask, epoch", []string{"epoch", "raise"}, exitUsage, "usage", "--yes"},
		{"nobody to ask, purge", []string{"purge", "--older-than", "1ms"}, exitUsage, "usage", "--yes"},

		{"a stale raise", []string{"marks", "raise", "r", "1", "--lease-id", "other", "--yes"}, exitRefused, "conflict", "another lease"},
		{"a raise without the lease", []string{"marks", "raise", "r", "4711", "--yes"}, exitUsage, "usage", "--lease-id"},
		{"a mark above the issuer", []string{"marks", "raise", "r", "4711", "--lease-id", "l", "--yes"}, exitRefused, "mark_ahead", "--above-issuer"},
		{"advance of a held resource", []string{"advance", "r", "4711", "--yes"}, exitRefused, "held", "worker-2"},
	} {
		t.Run(c.name, func(t *testing.T) { c.check(t, database) })
	}
	if after := value[string](t, pool, state); after != before {
		t.Errorf("a refused command changed something:\n%s\n%s", before, after)
	}
}

// What the database refuses.
func TestBadDatabase(t *testing.T) {
	t.Parallel()
	database, pool := database(t)
	withUser := func(user, password string) string {
		u, err := url.Parse(database)
		if err != nil {
			t.Fatal(err)
		}
		u.User = url.UserPassword(user, password)
		return u.String()
	}
	role := "nobody_" + value[string](t, pool, "SELECT substr(md5(random()::text), 1, 12)")
	exec1(t, pool, "CREATE ROLE "+role+" LOGIN PASSWORD 'tiger-tiger'")
	t.Cleanup(func() { exec1(t, pool, "DROP ROLE "+role) })

	_, newer := emptyDatabase(t)
	must(t, newer, "migrate", "--yes")
	exec1(t, dial(t, newer), "INSERT INTO fencepost.migrations (component, version, name) VALUES ('lockclient', 99, 'later'), ('sqlfence', 99, 'later')")
	_, without := emptyDatabase(t)

	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := "postgres://nobody:tiger-tiger@" + closed.Addr().String() + "/db?sslmode=disable"
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}

	for _, c := range []struct {
		url string
		refusal
	}{
		{without, refusal{"no schema", nil, exitSetup, "schema_missing", "run fencectl migrate"}},
		{newer, refusal{"a newer schema", nil, exitSetup, "schema_newer", "use a newer fencectl"}},
		{withUser(role, "tiger-tiger"), refusal{"no rights", nil, exitNoRights, "no_rights", "it is role " + role + ": fencectl roles"}},
		{withUser(role, "lion-lion"), refusal{"a wrong password", nil, exitNoRights, "no_rights", "password authentication failed"}},
		{gone, refusal{"no connection", nil, exitUnavailable, "unavailable", "connect"}},
		{"postgres://nobody:tiger-tiger@127.0.0.1:port/db", refusal{"a malformed URL", nil, exitUsage, "usage", "not a PostgreSQL URL"}},
	} {
		for _, args := range [][]string{
			{"list"}, {"marks", "list"}, {"force-unlock", "r", "--actor", "a", "--reason", "r", "--yes"},
		} {
			c.args = args
			t.Run(c.name+"/"+strings.Join(args[:1], " "), func(t *testing.T) { c.check(t, c.url) })
		}
	}
	c := refusal{"migrate", []string{"migrate", "--yes"}, exitSetup, "setup", "99"}
	t.Run("migrate of a newer schema", func(t *testing.T) { c.check(t, newer) })
}

// TestSchemaVersions: a schema that this build cannot use is refused with what it
// is; a newer one that allows this build is used.
func TestSchemaVersions(t *testing.T) {
	t.Parallel()
	for _, component := range components {
		up, _ := scripts(component)
		own := int64(strings.Count(up, "fencepost.migrations (component"))
		if own < 2 {
			t.Fatalf("the script of %s records %d versions", component, own)
		}
		for _, c := range []struct {
			have         pgadmin.Component
			reason, says string
		}{
			{pgadmin.Component{Name: component, Known: own}, "schema_missing", "run fencectl migrate"},
			{pgadmin.Component{Name: component, Applied: own - 1, UsableFrom: own - 1, Known: own}, "schema_older", fmt.Sprintf("has %s version %d, this build needs %d", component, own-1, own)},
			{pgadmin.Component{Name: component, Applied: own, UsableFrom: own, Known: own}, "", ""},
			{pgadmin.Component{Name: component, Applied: own + 1, UsableFrom: own, Known: own}, "", ""},
			{pgadmin.Component{Name: component, Applied: own + 1, UsableFrom: own + 1, Known: own}, "schema_newer", "use a newer fencectl"},
		} {
			err := unusable(c.have, "the database")
			if c.reason == "" {
				if err != nil {
					t.Errorf("%s %+v: %v", component, c.have, err)
				}
			} else if code, reason := exitOf(err); code != exitSetup || reason != c.reason || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s %+v: %d, %s, %v", component, c.have, code, reason, err)
			}
		}
	}
	url, pool := database(t)
	hold(t, pool, "w", "r", time.Hour)
	exec1(t, pool, `INSERT INTO fencepost.migrations (component, version, name, usable_from)
		SELECT component, max(version) + 1, 'later', max(version) FROM fencepost.migrations GROUP BY component`)
	must(t, url, "list")
	must(t, url, "force-unlock", "r", "--actor", "a", "--reason", "r", "--raise", "--yes")
}

// check runs the command, and reports its error to people and to programs.
func (c refusal) check(t *testing.T, database string) {
	t.Helper()
	var out, beside, people, programs strings.Builder
	err := (&app{out: &out, errOut: &beside}).execute(t.Context(), onDatabase(database, c.args))
	if err == nil {
		t.Fatalf("not refused: %s%s", out.String(), beside.String())
	}
	code, said := report(&people, false, err), people.String()
	where := ""
	if strings.HasPrefix(beside.String(), "On ") {
		where, _, _ = strings.Cut(beside.String(), "\n")
		printable(t, where)
		rest := strings.TrimPrefix(beside.String(), where+"\n")
		beside.Reset()
		beside.WriteString(rest)
	}
	if code != c.code || out.Len()+beside.Len() > 0 || !strings.HasPrefix(said, "fencectl: ") || !strings.Contains(said, c.says) ||
		strings.Count(said, "\n") != 1 || !strings.HasSuffix(said, "\n") {
		t.Errorf("exit code %d, %d is expected, with one line that says %q:\n%s%s%s", code, c.code, c.says, out.String(), beside.String(), said)
	}
	printable(t, said)

	again := report(&programs, true, err)
	var read struct {
		Code            int
		Reason, Message string
	}
	if err := json.Unmarshal([]byte(programs.String()), &read); err != nil {
		t.Fatalf("not JSON: %v\n%s", err, programs.String())
	}
	if again != c.code || read.Code != c.code || read.Reason != c.reason || !strings.Contains(read.Message, c.says) {
		t.Errorf("exit code %d, %+v, expected %d, %s", again, read, c.code, c.reason)
	}
	printable(t, programs.String())
	if all := said + programs.String(); strings.Contains(all, "tiger") || strings.Contains(all, "lion") {
		t.Errorf("a password was printed: %s", all)
	}
}
