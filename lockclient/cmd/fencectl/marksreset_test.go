package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// A poisoned mark is found, reset by compare-and-set, recorded, and the holder
// writes again. Everything else is refused and changes nothing.
func TestMarksReset(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	lease := hold(t, pool, "worker-1", "billing", time.Hour)
	db := fenced(t, pool)
	poison := guard.Claim{Resource: "billing", Token: guard.MaxToken, LeaseID: "typo"}
	if err := db.Raise(t.Context(), poison); err != nil {
		t.Fatal(err)
	}
	if err := db.Raise(t.Context(), guard.Claim{Resource: "lower", Token: 2, LeaseID: "first"}); err != nil {
		t.Fatal(err)
	}
	if out := must(t, url, "marks", "list", "--ahead"); !strings.Contains(out, guard.MaxToken.String()) {
		t.Errorf("the poisoned mark is not found:\n%s", out)
	}
	from := []string{"--from", guard.MaxToken.String()}
	to := []string{"--to", lease.Token().String()}
	reset := func(parts ...[]string) (args []string) {
		args = []string{"marks", "reset", "billing", "--yes"}
		for _, p := range parts {
			args = append(args, p...)
		}
		return args
	}
	why := []string{"--actor", "ana", "--reason", "INC-5, typed by hand"}
	before := value[string](t, pool, state)
	for _, c := range []refusal{
		{"no actor", reset(from, to, []string{"--reason", "r"}), exitUsage, "usage", "--actor"},
		{"a reason of only spaces", reset(from, to, []string{"--actor", "a", "--reason", " "}), exitUsage, "usage", "--reason"},
		{"no from", reset(to, why), exitUsage, "usage", "--from"},
		{"another mark", reset([]string{"--from", "7"}, to, why), exitRefused, "stale", "mark"},
		{"a lower mark", append([]string{"marks", "reset", "lower", "--yes", "--issuers-last", "9", "--from", "5", "--to", "1"}, why...), exitRefused, "conflict", "is token 2, lease first, not 5"},
		{"a malformed mark", reset([]string{"--from", "+7"}, to, why), exitUsage, "usage", `"+7"`},
		{"above the issuer", reset(from, []string{"--to", "4711"}, why), exitUsage, "invalid", "4711"},
		{"no mark", append([]string{"marks", "reset", "none", "--yes", "--issuers-last", "9", "--from", "7", "--to", "6"}, why...), exitNotFound, "not_found", "none"},
		{"no issuer", append([]string{"marks", "reset", "none", "--yes", "--from", "7", "--to", "6"}, why...), exitNotFound, "not_found", "--issuers-last"},
		{"nobody to ask", reset(from, to, why, []string{"--yes=false"}), exitUsage, "usage", "--yes"},
	} {
		t.Run(c.name, func(t *testing.T) { c.check(t, url) })
	}
	if value[string](t, pool, state) != before {
		t.Error("a refused reset changed something")
	}
	if admits(t, pool, lease.Claim()) {
		t.Error("control: the mark is not poisoned")
	}
	// As the runbook has it.
	_, line, found := strings.Cut(runbook, "\tfencectl marks reset RESOURCE ")
	line, _, _ = strings.Cut(line, "\n")
	if !found {
		t.Fatal("the runbook has no reset")
	}
	line = strings.NewReplacer("--from TOKEN", strings.Join(from, " "), "--to TOKEN", strings.Join(to, " "), "WHY", "INC-5").Replace(line)
	if out := must(t, url, reset(strings.Fields(line))...); !strings.Contains(out, "the mark of billing is 1") {
		t.Errorf("%s", out)
	}
	if !admits(t, pool, lease.Claim()) {
		t.Error("the holder is refused after the reset")
	}
	if admits(t, pool, guard.Claim{Resource: "billing", Token: lease.Token(), LeaseID: "another"}) || !admits(t, pool, guard.Claim{Resource: "billing", Token: guard.MaxToken - 1, LeaseID: "above"}) {
		t.Error("the question of the reset is not true: what is above --to writes again, another lease with --to does not")
	}
	var r listedReset
	if err := json.Unmarshal([]byte(must(t, url, "marks", "resets", "-o", "json")), &r); err != nil || r.Actor != "YOU" || r.From.Token != guard.MaxToken {
		t.Errorf("%v: %+v", err, r)
	}
	for _, name := range []string{"id", "createdAt", "resource", "fromToken", "fromLeaseId", "toToken", "toLeaseId", "issuersLast", "actorId", "reason", "databaseUser"} {
		if out := must(t, url, "marks", "resets", "-o", "json"); !strings.Contains(out, `"`+name+`":`) || strings.Contains(out, "_at") {
			t.Errorf("no %s in %s", name, out)
		}
	}
	if out := must(t, url, "marks", "resets"); !strings.Contains(out, "INC-5") {
		t.Errorf("%s", out)
	}
}
