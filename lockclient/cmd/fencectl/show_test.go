package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Each verdict of show, on a database in which it is true.
func TestVerdicts(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	mark := func(resource string, token guard.Token, lease string) {
		exec1(t, pool, "INSERT INTO fencepost.marks (resource, token, lease_id) VALUES ($1, $2, $3)", resource, int64(token), lease)
	}
	for _, c := range []struct {
		verdict string
		make    func(resource string, pool *pgxpool.Pool)
	}{
		{"unmarked", func(string, *pgxpool.Pool) {}},
		{"current", func(r string, pool *pgxpool.Pool) {
			mark(r, 1, value[string](t, pool, "SELECT lease_id FROM fencepost.leases WHERE resource = $1", r))
		}},
		{"conflict", func(r string, _ *pgxpool.Pool) { mark(r, 1, "another") }},
		{"mark_ahead", func(r string, _ *pgxpool.Pool) { mark(r, 2, "later") }},
		{"behind", func(r string, pool *pgxpool.Pool) {
			mark(r, 1, "old")
			must(t, url, "force-unlock", r, "--actor", "a", "--reason", "r", "--yes")
		}},
		{"burned", func(r string, _ *pgxpool.Pool) {
			must(t, url, "force-unlock", r, "--actor", "a", "--reason", "r", "--yes", "--raise")
		}},
	} {
		hold(t, pool, "w", c.verdict, time.Hour)
		c.make(c.verdict, pool)
		var v view
		if err := json.Unmarshal([]byte(must(t, url, "show", c.verdict, "-o", "json")), &v); err != nil || v.Verdict != c.verdict {
			t.Errorf("%v: %s in place of %s", err, v.Verdict, c.verdict)
		}
	}
	// What show prints fences the holder that was cut without --raise, also one
	// that has not written yet; of a holder that nobody cut it says nothing.
	if out := must(t, url, "show", "unmarked"); strings.Contains(out, "to fence it now") {
		t.Error(out)
	}
	must(t, url, "force-unlock", "unmarked", "--actor", "a", "--reason", "r", "--yes")
	for _, resource := range []string{"behind", "unmarked"} {
		_, command, found := strings.Cut(must(t, url, "show", resource), "to fence it now: fencectl ")
		command, _, _ = strings.Cut(command, "\n")
		if !found {
			t.Fatal("show does not say how to raise the burned claim of " + resource)
		}
		must(t, url, append(strings.Fields(command), "--yes")...)
		if v := value[string](t, pool, "SELECT lease_id FROM fencepost.marks WHERE resource = $1 AND token = 2", resource); v != value[string](t, pool, "SELECT request_id FROM fencepost.audit WHERE resource = $1", resource) {
			t.Errorf("the mark of %s has lease ID %s", resource, v)
		}
	}
	if len(verdicts) != 8 { // and unread, and ahead, below
		t.Errorf("%d verdicts", len(verdicts))
	}
	must(t, url, "advance", "--floor", "100", "--yes")
	says := func(verdict, resource string) {
		var v view
		if err := json.Unmarshal([]byte(must(t, url, "show", resource, "-o", "json")), &v); err != nil || v.Verdict != verdict {
			t.Errorf("%v: %s in place of %s", err, v.Verdict, verdict)
		}
	}
	says("ahead", "mark_ahead")
	exec1(t, pool, "ALTER TABLE fencepost.marks RENAME TO elsewhere")
	says("unread", "current")
}
