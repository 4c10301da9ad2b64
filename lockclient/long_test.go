//go:build long

package lockclient

import (
	"testing"
	"time"
)

// TestLongRenewalsGoOutTogether is TestRenewalsGoOutTogether on a server.
func TestLongRenewalsGoOutTogether(t *testing.T) {
	together(t, newTestClient(t, migrated(t), nil), 2000, 30*time.Second, 30*time.Second, 10)
}

// TestLongCrowd: forty processes that wait are all granted the lease.
// How fast it changes hands is measured by the benchmarks.
func TestLongCrowd(t *testing.T) {
	many, few := crowded(t, 40, 40), crowded(t, 8, 200)
	t.Logf("%.0f grants a second to forty, %.0f to eight; the longest wait is %v, the mean %v", many.perSecond, few.perSecond, many.longest, many.mean)
	if many.grants != 40*40 || few.grants != 8*200 {
		t.Errorf("%d and %d grants, want %d and %d", many.grants, few.grants, 40*40, 8*200)
	}
}
