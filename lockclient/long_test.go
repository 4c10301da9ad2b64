//go:build long

package lockclient

import (
	"testing"
	"time"
)

// TestLongRenewalsGoOutTogether is TestRenewalsGoOutTogether on a server.
func TestLongRenewalsGoOutTogether(t *testing.T) {
	together(t, newTestClient(t, migrated(t), nil), 50_000, time.Minute, 10*time.Minute, 100)
}

// TestLongCrowd, for an idle machine, compares forty waiting processes with eight:
// the lease changes hands nearly as fast, and nobody waits for long.
func TestLongCrowd(t *testing.T) {
	many, few := crowded(t, 40, 40), crowded(t, 8, 200)
	if many.attempts > 2.2 {
		t.Errorf("%.2f attempts to a grant", many.attempts)
	}
	if many.perSecond < 0.8*few.perSecond {
		t.Errorf("%.0f grants a second to forty, %.0f to eight", many.perSecond, few.perSecond)
	}
	if many.longest > 3*many.mean {
		t.Errorf("the longest wait is %v, the mean %v", many.longest, many.mean)
	}
}
