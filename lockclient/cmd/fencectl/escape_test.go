package main

import (
	"context"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/longtest"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/lockclient/internal/leasetest"
	"github.com/fencepost-go/fencepost/lockclient/pglock"

	"github.com/jackc/pgx/v5/pgxpool"
)

func emptyDatabase(t testing.TB) (*pgxpool.Pool, string) {
	t.Helper()
	url := pgtest.Database(t)
	return dial(t, url), url
}

// printable fails the test if a terminal would do anything but print s.
func printable(t testing.TB, s string) {
	t.Helper()
	for i, r := range s {
		if r != '\n' && !unicode.IsPrint(r) {
			t.Errorf("%U at byte %d of %q", r, i, s)
			return
		}
	}
}

// hostile are texts that the checks of this module refuse, or accept since they
// are not control characters, and that are in the database nevertheless.
var hostile = []string{
	"\x1b[2J\x1b]0;owned\a", "line\nbreak\rreturn", "c1\u009b2J", "bidi\u202egnp.exe", "zero\u200bwidth", "del\x7f", "tag\U000e0041", " space at the ends ",
	`"quoted"`, "\u2028separator",
}

func TestOutputIsPrintable(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	for i, text := range hostile {
		exec1(t, pool, `INSERT INTO fencepost.leases (resource, token, lease_id, owner, acquired_at, expires_at)
			VALUES ($1, $2, $1, $1, clock_timestamp() - interval '2 hours', clock_timestamp() + interval '1 hour')`, "r"+text, i+1)
		exec1(t, pool, `INSERT INTO fencepost.marks (resource, token, lease_id) VALUES ($1, $2, $1)`, "r"+text, i+1)
		exec1(t, pool, `INSERT INTO fencepost.audit (id, action, resource, actor, reason, request_id, token, cut_state, cut_token, cut_owner, cut_acquired_at, cut_expires_at)
			VALUES ($2, 'force_unlock', $1, $1, $1, $1, 1, 'free', 1, $1, 'epoch', 'epoch')`, "r"+text, i+1)
	}
	for _, format := range []string{"table", "json"} {
		for _, args := range [][]string{
			{"list"}, {"list", "--held-for", "1h"}, {"audit"}, {"show", "rbidi\u202egnp.exe"}, {"show", "rzero\u200bwidth"}, {"marks", "list"},
			{"force-unlock", "rbidi\u202egnp.exe", "--actor", "a\u202e", "--reason", "r\u200b", "--yes"},
			{"force-unlock", "rzero\u200bwidth", "--actor", "a\u202e", "--reason", "r\u200b", "--yes", "--raise"},
		} {
			out := must(t, url, append(args, "-o", format)...)
			printable(t, out)
			if out == "" {
				t.Errorf("%q printed nothing", args)
			}
		}
	}
	// The control: the requested names are in the output, escaped.
	if out := must(t, url, "list", "--state", "held,expired,free"); !strings.Contains(out, `"r\x1b[2J\x1b]0;owned\a"`) || strings.Count(out, "\n") != len(hostile)+1 {
		t.Errorf("the names are not all listed:\n%s", out)
	}
}

// TestRowsThatNobodyExpects: whatever an issuer's role writes into a row, every command that
// reads or cuts leases works, and prints nothing but text.
func TestRowsThatNobodyExpects(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	names := leasetest.Worst(t, pool)
	for _, format := range []string{"table", "json"} {
		for _, args := range [][]string{{"list", "--state", "held,expired,free"}, {"list", "--awaited"}, {"list", "--held-for", "1h"}, {"audit"}, {"doctor"}} {
			var out string
			r := fencectl(t, url, append(args, "-o", format)...)
			if out = r.out; r.code != exitOK && r.code != exitUnhealthy { // fsync is off in tests
				t.Errorf("%q: %+v", args, r)
			}
			printable(t, out)
			if n := strings.Count(out, "worst"); args[len(args)-1] == "held,expired,free" && n < len(names)-2 {
				t.Errorf("%q lists %d of %d:\n%s", args, n, len(names), out)
			}
		}
	}
	for n, name := range names {
		if guard.ValidateResource(name) != nil {
			continue
		}
		printable(t, must(t, url, "show", name))
		if n%longtest.ByLength(4, 1) != 0 && !strings.Contains(name, "lease_id") { // pgadmin's test cuts each of them
			continue
		}
		r := fencectl(t, url, "force-unlock", name, "--actor", "ana", "--reason", "it hangs", "--yes")
		if printable(t, r.out+r.errOut); r.code != exitOK || !strings.Contains(r.out, "invalidated token:     2\n") {
			t.Errorf("%q: %+v", name, r)
		}
	}
}

// Two names never look alike.
func TestShownIsInjective(t *testing.T) {
	seen := map[string]string{}
	for _, s := range append([]string{"", "a", `\x1b`, `"\x1b"`, "\x1b", "a ", `"a "`, "é", "e\u0301", "\xff", `\xff`, "\ufffd"}, hostile...) {
		out := shown(s)
		if first, twice := seen[out]; twice {
			t.Errorf("%q and %q are both shown as %s", first, s, out)
		}
		seen[out] = s
		printable(t, out)
	}
}

// Nothing prints a password, however the program is called.
func TestPasswordIsNeverPrinted(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	secret := config.ConnConfig.Password
	if secret == "" || !strings.Contains(url, secret) {
		t.Fatalf("the test's URL has no password")
	}
	if err := pglock.Migrate(context.Background(), pool); err != nil {
		t.Fatal(err)
	}
	hold(t, pool, "w", "r", time.Hour)
	for _, args := range [][]string{
		{"--help"}, {"list", "--help"}, {"list"}, {"show", "r"}, {"doctor"}, {"doctor", "-o", "json"}, {"frobnicate"}, {"list", "--frob"},
		{"--database-url", strings.Replace(url, "@", "@@:", 1), "list"}, {"-d", "password=" + secret + " host='", "list"},
		{"-d", strings.Replace(url, "postgres://", "postgres:/", 1), "list"}, {"-d", strings.Replace(url, "?", "/other?", 1), "list"},
		{"-d", url + "&sslmode=odd", "doctor"},
	} {
		r := fencectl(t, url, args...)
		if strings.Contains(r.out+r.errOut, secret) {
			t.Errorf("%q printed the password:\n%s%s", args[1:], r.out, r.errOut)
		}
	}
}
