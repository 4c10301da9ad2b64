package main

import (
	"context"
	"strings"
	"testing"

	"github.com/urfave/cli/v3"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
)

// overtaken is an engine on which a successor is granted the lease between a look and a force unlock.
type overtaken struct{ lockadmin.Admin }

func (overtaken) Get(_ context.Context, resource string) (lockadmin.LeaseInfo, error) {
	return lockadmin.LeaseInfo{Resource: resource, State: lockadmin.StateHeld, Token: 1, LeaseID: "seen", Owner: "worker-1"}, nil
}

func (overtaken) ForceUnlock(_ context.Context, resource, _, _ string, opts *lockadmin.ForceUnlockOptions) (lockadmin.ForceUnlocked, error) {
	now := lockadmin.LeaseInfo{Resource: resource, State: lockadmin.StateHeld, Token: 2, LeaseID: "successor", Owner: "worker-2"}
	if opts.ExpectedLeaseID != "" && opts.ExpectedLeaseID != now.LeaseID {
		return lockadmin.ForceUnlocked{}, &lockadmin.LeaseChangedError{Expected: opts.ExpectedLeaseID, Now: now}
	}
	return lockadmin.ForceUnlocked{Invalidated: guard.Claim{Resource: resource, Token: 3, LeaseID: "request"}, Cut: now, AuditID: 1}, nil
}

func init() {
	engines["overtaken"] = func(context.Context, *cli.Command) (*session, error) {
		return &session{op: overtaken{}, target: "a test", timeout: testkit.Patience, close: func() {}}, nil
	}
}

// TestYesCutsWhatItSaw: force-unlock --yes cuts the lease that it has looked at, and no
// successor's. The control names the successor's lease, which is cut.
func TestYesCutsWhatItSaw(t *testing.T) {
	t.Parallel()
	unlock := []string{"--issuer", "overtaken", "force-unlock", "r", "--actor", "ana", "--reason", "it hangs", "--yes"}
	if r := fencectl(t, "", unlock...); r.code != exitRefused || !strings.Contains(r.errOut, "successor") || !strings.Contains(r.errOut, "seen") {
		t.Errorf("%+v", r)
	}
	if r := fencectl(t, "", append(unlock, "--expect", "successor")...); r.code != exitOK {
		t.Errorf("the control: %+v", r)
	}
}
