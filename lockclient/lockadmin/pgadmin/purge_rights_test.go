package pgadmin

import (
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/lockclient/internal/input"
)

// TestNoUnlockWithoutRecord: whatever an operator passes to the purge, a lease
// that somebody holds stays. The control is the function that trusts its caller.
func TestNoUnlockWithoutRecord(t *testing.T) {
	t.Parallel()
	owner, names, as := testRoles(t, "")
	client := newTestClient(t, owner, nil)
	purge := func() (purged int64) {
		mustTry(t, client, "held "+input.NewLeaseID(), time.Hour)
		err := as(names.Operator).QueryRow(t.Context(), `SELECT o_purged FROM fencepost.purge_leases(
			(SELECT array_agg(resource) FROM fencepost.leases), -86400000000, 1000)`).Scan(&purged)
		if err != nil {
			t.Fatal(err)
		}
		return purged
	}
	if n := purge(); n != 0 {
		t.Errorf("%d held leases were purged", n)
	}
	mutate(t, owner, "purge_leases", "greatest(p_free_us, 0)", "p_free_us")
	if n := purge(); n != 2 {
		t.Errorf("control: %d held leases were purged", n)
	}
}
