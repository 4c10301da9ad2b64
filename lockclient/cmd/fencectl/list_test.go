package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
)

// A list is printed while it is read: rows that are deleted after the first line
// was printed, before more is read, are not printed. The control is a list of
// rows that stay.
func TestListIsPrintedWhileItIsRead(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	const leases = 3000
	exec1(t, pool, `INSERT INTO fencepost.leases (resource, token, lease_id, owner, acquired_at, expires_at)
		SELECT 'r' || g, g, g, 'w', clock_timestamp(), clock_timestamp() + interval '1 hour' FROM generate_series(1, $1::bigint) g`, leases)
	for _, format := range []string{"table", "json"} {
		if n := strings.Count(must(t, url, "list", "-n", "2500", "-o", format), "lease"); format == "json" && n != 2500 {
			t.Errorf("control: %d leases are printed", n)
		}
	}
	from, to := io.Pipe()
	ended := make(chan int, 1)
	go func() {
		ended <- run(context.Background(), onDatabase(url, []string{"list", "-o", "json"}), nil, to, io.Discard)
		to.Close()
	}()
	printed := 0
	for lines := bufio.NewScanner(from); lines.Scan(); printed++ {
		if printed == 0 {
			exec1(t, pool, "DELETE FROM fencepost.leases")
		}
	}
	if code := <-ended; code != exitOK || printed > leases/2 {
		t.Errorf("exit code %d, %d of %d leases were printed although they were deleted when the first one was read", code, printed, leases)
	}
}

// A list says how many processes wait for a lease and what its holder says
// about itself, escaped.
func TestListShowsWaitersAndMetadata(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	exec1(t, pool, `INSERT INTO fencepost.leases (resource, token, lease_id, owner, metadata, acquired_at, expires_at, wake_until, waiters)
		VALUES ('r', 1, 'l', 'w', E'pod 7 \x1b[2J', clock_timestamp(), clock_timestamp() + interval '1 hour', clock_timestamp() + interval '1 hour', ARRAY['a', 'b'])`)
	out := must(t, url, "list")
	if !strings.Contains(out, "held, 2 waiting") || !strings.HasSuffix(strings.TrimSpace(out), `r         "pod 7 \x1b[2J"`) {
		t.Errorf("it prints\n%s", out)
	}
	var lease lockadmin.LeaseInfo
	if err := json.Unmarshal([]byte(must(t, url, "list", "-o", "json")), &lease); err != nil || lease.Waiters != 2 || lease.Metadata != "pod 7 \x1b[2J" {
		t.Errorf("%v, %+v", err, lease)
	}
}

// What --limit, --state, --awaited, --held-for and the pattern select.
func TestListChooses(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	for i := range 250 { // more than a first page
		exec1(t, pool, `INSERT INTO fencepost.leases (resource, token, lease_id, owner, acquired_at, expires_at, wake_until)
			VALUES ($1, 1, CASE WHEN $2 % 5 > 0 THEN 'l' END, 'w', clock_timestamp(), clock_timestamp() + CASE $2 % 5 WHEN 1 THEN -1 ELSE 1 END * interval '1 hour',
			CASE WHEN $2 % 50 = 2 THEN clock_timestamp() + interval '1 hour' END)`, fmt.Sprintf("a%%_%03d", i), i)
	}
	for _, c := range []struct {
		args  string
		lines int
		last  string
	}{
		{"", 200, "a%_249"}, {"--state held,expired,free", 250, "a%_249"}, {"--state held,expired,free --limit 120", 121, "(more, see --limit)"}, {"--limit 200", 200, "a%_249"},
		{"--state free", 50, "a%_245"}, {"--state expired", 50, "a%_246"}, {"--state expired --state free", 100, "a%_246"}, {"--state held,free", 200, "a%_249"},
		{"--awaited", 5, "a%_202"}, {"a%_24* --state held,expired,free", 10, "a%_249"}, {"a%_24 --state held,expired,free", 1, "(no lease)"}, {"a__*", 1, "(no lease)"}, {"-n 1 a%_001", 1, "a%_001"},
	} {
		out := must(t, url, append([]string{"list"}, strings.Fields(c.args)...)...)
		lines := strings.Split(strings.TrimSpace(out), "\n")[1:]
		if len(lines) != c.lines || !strings.HasSuffix(lines[len(lines)-1], c.last) {
			t.Errorf("list %s: %d lines, the last is %q; expected %d and %q", c.args, len(lines), lines[len(lines)-1], c.lines, c.last)
		}
	}
	exec1(t, pool, "UPDATE fencepost.leases SET acquired_at = clock_timestamp() - interval '2 hours' WHERE resource IN ('a%_001', 'a%_002', 'a%_005')")
	for least, lines := range map[string]int{"1h": 1, "3h": 1, "1us": 150} { // a%_001 has expired, a%_005 is free
		out := must(t, url, "list", "--state", "held,expired,free", "--held-for", least)
		if n := strings.Count(out, "\n") - 1; n != lines || strings.Contains(out, "a%_002") != (least != "3h") {
			t.Errorf("held for %s: %s", least, out)
		}
	}
	for _, args := range []string{"--state odd", "--held-for -1s", "--held-for x"} {
		if r := fencectl(t, url, append([]string{"list"}, strings.Fields(args)...)...); r.code != exitUsage {
			t.Errorf("%s: %+v", args, r)
		}
	}
}
