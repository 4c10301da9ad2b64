package lockadmin

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// TestForceUnlockAfterSwitchOver: on a server that was reached by logical replication,
// which does not copy where the sequence of the audit's numbers is, force unlocks work
// and are recorded under new numbers, also several at once. The control has no trigger.
func TestForceUnlockAfterSwitchOver(t *testing.T) {
	t.Parallel()
	owner := migrated(t)
	client, o := newTestClient(t, owner, nil), newRoleOperator(t, owner)
	unlock := func(resource string) error {
		mustTry(t, client, resource, time.Hour)
		_, err := o.ForceUnlock(t.Context(), resource, "ana", "switch-over", nil)
		return err
	}
	for _, name := range []string{"a", "b", "c"} {
		if err := unlock(name); err != nil {
			t.Fatal(err)
		}
	}
	switchOver := func() {
		mustExec(t, owner, "SELECT setval(pg_get_serial_sequence('fencepost.audit', 'id'), 1, false)")
	}
	switchOver()
	mustExec(t, owner, "ALTER TABLE fencepost.audit DISABLE TRIGGER audit_follows")
	if err := unlock("control"); !errors.Is(err, guard.ErrUnavailable) {
		t.Errorf("the control: %v", err)
	}
	mustExec(t, owner, "ALTER TABLE fencepost.audit ENABLE TRIGGER audit_follows")
	switchOver()
	var wg sync.WaitGroup
	for _, name := range []string{"d", "e", "f", "g"} {
		wg.Go(func() {
			if err := unlock(name); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	var records, numbers int
	if err := owner.QueryRow(t.Context(), "SELECT count(*), max(id) FROM fencepost.audit").Scan(&records, &numbers); err != nil || records != 7 || numbers != 7 {
		t.Errorf("%d records, the last is number %d, %v", records, numbers, err)
	}
}
