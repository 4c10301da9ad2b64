package etcd_test

import (
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/internal/suites/issuers/servers"
)

// TestCommand: the operators' command shows a holder, advances a resource and raises
// the epoch of a real etcd, and an issuer grants above both.
func TestCommand(t *testing.T) {
	run := servers.Build(t, "lockclient/etcdlock/cmd/fencectl-etcd")
	addr, _ := startNode(t, t.TempDir())
	i := issuer(t, addr)
	held := acquire(t, i, "r", "a")
	if out, code := run("--endpoints", addr, "show", "r"); code != 0 || !strings.Contains(out, held.Token.String()) {
		t.Errorf("show: %d, %s", code, out)
	}
	if out, code := run("--endpoints", addr, "advance", "r", (held.Token + 1000).String(), "--yes"); code != 4 {
		t.Errorf("advance above a holder: %d, %s", code, out)
	}
	if out, code := run("--endpoints", addr, "advance", "free", "4000000000000000000", "--yes"); code != 0 {
		t.Errorf("advance: %d, %s", code, out)
	}
	if next := acquire(t, issuer(t, addr), "free", "b"); next.Token <= 4_000_000_000_000_000_000 {
		t.Errorf("token %v after the advance", next.Token)
	}
	before := acquire(t, issuer(t, addr), "raised", "a")
	if out, code := run("--endpoints", addr, "epoch", "raise", "--yes"); code != 0 {
		t.Errorf("epoch raise: %d, %s", code, out)
	}
	// As much as a restore can set back.
	if after := acquire(t, issuer(t, addr), "after", "a"); after.Token < before.Token+1<<30 {
		t.Errorf("token %v before the epoch was raised, %v after it", before.Token, after.Token)
	}
	if out, code := run("--endpoints", "127.0.0.1:1", "--timeout", "1s", "show", "r"); code != 6 {
		t.Errorf("without a server: %d, %s", code, out)
	}
}
