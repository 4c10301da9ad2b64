package pgadmin

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/leasetest"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
)

// TestRowsThatNobodyExpects: whatever an issuer's role writes into a row, an operator lists,
// reads and cuts it, and the result can be encoded.
func TestRowsThatNobodyExpects(t *testing.T) {
	t.Parallel()
	_, names, as := testRoles(t, "")
	o := newRoleOperator(t, as(names.Operator))
	resources := leasetest.Worst(t, as(names.Issuer))
	slices.Sort(resources)
	readable := func(info lockadmin.LeaseInfo) {
		t.Helper()
		if _, err := json.Marshal(info); err != nil {
			t.Errorf("%q: %v", info.Resource, err)
		}
		if info.State == lockadmin.StateHeld && (info.Remaining <= 0 || info.HeldFor == 0) || -info.HeldFor == info.HeldFor && info.State == lockadmin.StateHeld {
			t.Errorf("%q is held for %v, with %v left", info.Resource, info.HeldFor, info.Remaining)
		}
	}
	leases, err := all(o.List(t.Context(), "", nil))
	var listed []string
	for _, l := range leases {
		listed = append(listed, l.Resource)
		readable(l)
	}
	if err != nil || !slices.Equal(listed, resources) {
		t.Errorf("listed %q of %q, %v", listed, resources, err)
	}
	long, err := all(o.List(t.Context(), "", &lockadmin.ListOptions{HeldFor: time.Hour}))
	for _, l := range long {
		readable(l)
	}
	if err != nil || len(long) != 3 || long[0].HeldFor < 200*365*24*time.Hour {
		t.Errorf("held for long: %+v, %v", long, err)
	}
	if found, err := o.Inspect(t.Context()); err != nil || !strings.Contains(of(t, found, "clock set back").Detail, ": 4;") {
		t.Errorf("granted in the future: %+v, %v", found, err)
	}
	cut := 0
	for _, resource := range resources {
		if guard.ValidateResource(resource) != nil { // no call names it; nobody's fence has it either
			continue
		}
		info, err := o.Get(t.Context(), resource)
		if readable(info); err != nil {
			t.Errorf("%q: %v", resource, err)
		}
		done, err := o.ForceUnlock(t.Context(), resource, "Ada", "it hangs", &lockadmin.ForceUnlockOptions{ExpectedLeaseID: info.LeaseID})
		if readable(done.Cut); err != nil || done.Invalidated.Token != 2 || done.Cut.LeaseID != info.LeaseID {
			t.Errorf("%q: %+v, %v", resource, done, err)
		}
		cut++
	}
	records := auditOf(t, o, "")
	for _, r := range records {
		readable(r.Cut)
	}
	if len(records) != cut || cut != len(resources)-2 {
		t.Errorf("%d records of %d cuts of %d", len(records), cut, len(resources))
	}
	if _, err := o.RaiseEpoch(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := o.Purge(t.Context(), &lockadmin.PurgeOptions{OlderThan: time.Millisecond}); err != nil {
		t.Error(err)
	}
}
