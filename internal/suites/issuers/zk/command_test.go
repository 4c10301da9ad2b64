package zk_test

import (
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/internal/suites/issuers/servers"
)

// TestCommand: the operators' command shows a holder, advances a resource and raises
// the epoch of a real ZooKeeper, and an issuer grants above both.
func TestCommand(t *testing.T) {
	run := servers.Fencectl(t)
	z := startServers(t, 1)
	on := func(args ...string) (string, int) {
		return run(append([]string{"--issuer", "zookeeper", "--address", z.Nodes[0].Addr, "--timeout", "1m"}, args...)...)
	}
	held := acquire(t, issuer(t, nil, z.Addrs()...), "r", "a")
	if out, code := on("show", "r"); code != 0 || !strings.Contains(out, held.Token.String()) {
		t.Errorf("show: %d, %s", code, out)
	}
	if out, code := on("advance", "r", (held.Token + 1000).String(), "--yes"); code != 4 {
		t.Errorf("advance above a holder: %d, %s", code, out)
	}
	if out, code := on("advance", "free", "4000000000000000000", "--yes"); code != 0 {
		t.Errorf("advance: %d, %s", code, out)
	}
	if next := acquire(t, issuer(t, nil, z.Addrs()...), "free", "b"); next.Token <= 4_000_000_000_000_000_000 {
		t.Errorf("token %v after the advance", next.Token)
	}
	before := acquire(t, issuer(t, nil, z.Addrs()...), "raised", "a")
	if out, code := on("epoch", "raise", "--yes"); code != 0 {
		t.Errorf("epoch raise: %d, %s", code, out)
	}
	if after := acquire(t, issuer(t, nil, z.Addrs()...), "after", "a"); after.Token < before.Token+1<<30 {
		t.Errorf("token %v before the epoch was raised, %v after it", before.Token, after.Token)
	}
	if out, code := on("force-unlock", "r", "--actor", "ada", "--reason", "it hangs", "--expect", "another", "--yes"); code != 4 {
		t.Errorf("force-unlock of another lease: %d, %s", code, out)
	}
	if out, code := on("force-unlock", "r", "--actor", "ada", "--reason", "it hangs", "--yes"); code != 0 || !strings.Contains(out, "MAY STILL WRITE") && !strings.Contains(out, "may still write") {
		t.Errorf("force-unlock: %d, %s", code, out)
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
	if out, code := run("--issuer", "zookeeper", "--address", "127.0.0.1:1", "--timeout", "1s", "show", "r"); code != 6 {
		t.Errorf("without a server: %d, %s", code, out)
	}
}
