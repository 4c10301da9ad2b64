package etcd_test

import (
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/internal/suites/issuers/servers"
)

// TestCommand: the operators' command shows a holder, advances a resource, raises
// the epoch and cuts a lease of a real etcd, and an issuer grants above both.
func TestCommand(t *testing.T) {
	run := servers.Fencectl(t)
	addr, _ := startNode(t, t.TempDir())
	on := func(args ...string) (string, int) {
		return run(append([]string{"--issuer", "etcd", "--address", addr, "--timeout", "1m"}, args...)...)
	}
	i := issuer(t, addr)
	held := acquire(t, i, "r", "a")
	if out, code := on("show", "r"); code != 0 || !strings.Contains(out, held.Token.String()) {
		t.Errorf("show: %d, %s", code, out)
	}
	if out, code := on("advance", "r", (held.Token + 1000).String(), "--yes"); code != 4 {
		t.Errorf("advance above a holder: %d, %s", code, out)
	}
	if out, code := on("advance", "free", "4000000000000000000", "--yes"); code != 0 {
		t.Errorf("advance: %d, %s", code, out)
	}
	if next := acquire(t, issuer(t, addr), "free", "b"); next.Token <= 4_000_000_000_000_000_000 {
		t.Errorf("token %v after the advance", next.Token)
	}
	before := acquire(t, issuer(t, addr), "raised", "a")
	if out, code := on("epoch", "raise", "--yes"); code != 0 {
		t.Errorf("epoch raise: %d, %s", code, out)
	}
	// As much as a restore can set back.
	if after := acquire(t, issuer(t, addr), "after", "a"); after.Token < before.Token+1<<30 {
		t.Errorf("token %v before the epoch was raised, %v after it", before.Token, after.Token)
	}
	if out, code := on("force-unlock", "r", "--actor", "ada", "--reason", "it hangs", "--expect", "another", "--yes"); code != 4 {
		t.Errorf("force-unlock of another lease: %d, %s", code, out)
	}
	if out, code := on("force-unlock", "r", "--actor", "ada", "--reason", "it hangs", "--yes"); code != 0 || !strings.Contains(out, "MAY STILL WRITE") && !strings.Contains(out, "may still write") {
		t.Errorf("force-unlock: %d, %s", code, out)
	}
	// A name that nobody holds is not cut by a typing error, and nothing is recorded.
	if out, code := on("force-unlock", "nope", "--actor", "ada", "--reason", "a typing error", "--yes"); code != 3 || !strings.Contains(out, "--expect none") {
		t.Errorf("force-unlock of nobody's: %d, %s", code, out)
	}
	if out, code := on("show", "nope"); code != 0 || !strings.Contains(out, "never leased: check the name") {
		t.Errorf("show of nobody's: %d, %s", code, out)
	}
	if out, code := on("audit", "nope"); code != 0 || !strings.Contains(out, "no record") {
		t.Errorf("a refused force-unlock is recorded: %d, %s", code, out)
	}
	expected := []string{"force-unlock", "nope", "--actor", "ada", "--reason", "its holder crashed", "--yes", "--request-id", "INC-1"}
	if out, code := on(append(expected, "--expect", "none")...); code != 0 || !strings.Contains(out, "On etcd "+addr) {
		t.Errorf("force-unlock of nobody's that is expected: %d, %s", code, out)
	}
	if out, code := on(expected...); code != 0 || !strings.Contains(out, "done before") {
		t.Errorf("the same request again: %d, %s", code, out)
	}
	if out, code := on("audit"); code != 0 || !strings.Contains(out, "it hangs") {
		t.Errorf("audit: %d, %s", code, out)
	}
	if out, code := on("doctor"); code != 0 || !strings.Contains(out, "acquire") {
		t.Errorf("doctor: %d, %s", code, out)
	}
	if out, code := on("purge", "--yes"); code != 2 || !strings.Contains(out, "does not have this") {
		t.Errorf("purge: %d, %s", code, out)
	}
	if out, code := on("migrate"); code != 2 || !strings.Contains(out, "PostgreSQL") {
		t.Errorf("migrate: %d, %s", code, out)
	}
	if out, code := run("--issuer", "etcd", "--address", "127.0.0.1:1", "--timeout", "1s", "show", "r"); code != 6 || !strings.Contains(out, "on etcd 127.0.0.1:1") {
		t.Errorf("without a server: %d, %s", code, out)
	}
}
