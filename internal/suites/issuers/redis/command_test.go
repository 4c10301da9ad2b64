package redis_test

import (
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/internal/suites/issuers/servers"
)

// TestCommand: what the runbook says of Redis, typed on a real one: the command shows a holder, cuts
// its lease with a record and once, and advances a resource; what it cannot it says.
func TestCommand(t *testing.T) {
	run := servers.Fencectl(t)
	s := startServer(t)
	on := func(args ...string) (string, int) {
		return run(append([]string{"--issuer", "redis", "--address", s.addr, "--timeout", "1m"}, args...)...)
	}
	held := acquire(t, s.issuer(t, s.addr), "r", "a")
	cut := []string{"force-unlock", "r", "--actor", "ada", "--reason", "it hangs", "--request-id", "INC-1", "--yes"}
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"show", "r"}, 0, held.Token.String()},
		{[]string{"list"}, 0, "r"},
		{[]string{"advance", "r", (held.Token + 1000).String(), "--yes"}, 4, "held"},
		{append(cut, "--expect", "another"), 4, `expected was`},
		{append(cut, "--expect", "a"), 0, "may still write"},
		{cut, 0, "done before"},
		{[]string{"show", "r"}, 0, "FORCE_UNLOCK"},
		{[]string{"audit"}, 0, "it hangs"},
		{[]string{"advance", "free", "4000000000000000000", "--yes"}, 0, "above 4000000000000000000"},
		{[]string{"doctor"}, 0, "noeviction"},
		{[]string{"advance", "--floor", "5", "--yes"}, 2, "does not have this"},
		{[]string{"epoch", "raise", "--yes"}, 2, "does not have this"},
		{[]string{"purge", "--yes"}, 2, "does not have this"},
		{[]string{"triggers", "report", "invoices", "--yes"}, 2, "PostgreSQL"},
	} {
		if out, code := on(c.args...); code != c.code || !strings.Contains(out, c.says) {
			t.Errorf("%q: %d, %s; want %d, %q", c.args, code, out, c.code, c.says)
		}
	}
}
