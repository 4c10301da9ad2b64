package lockclient

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

// TestTellingNobodyAllocatesNothing: without an observer, an event that the
// logger does not get allocates nothing, failures and losses included. With an
// observer, successes allocate nothing; for the reason of a failure its chain of
// errors is walked. Asking a lease whether it is valid allocates nothing either.
func TestTellingNobodyAllocatesNothing(t *testing.T) {
	ctx := context.Background()
	held := &HeldError{Resource: "r", Owner: "o", Token: 1}
	failure := guard.Unavailable("renew", guard.Claim{Resource: "r"}, context.Canceled)
	r := &request{Request: driver.Request{Resource: "tenant:r", Owner: "o", LeaseID: "l", TTL: time.Second}}
	var told guard.Event
	for name, observer := range map[string]guard.Observer{
		"nobody":      nil,
		"an observer": guard.ObserverFunc(func(_ context.Context, e guard.Event) { told = e }),
	} {
		c := simulate(t, simulation{func() time.Duration { return 1 }}, &Options{Observer: observer, Logger: slog.New(slog.DiscardHandler)})
		l := &Lease{client: c, claim: guard.Claim{Resource: "tenant:r", Token: 1, LeaseID: "l"}, ttl: time.Second, reclaimed: true, deadline: time.Hour, place: -1}
		for what, f := range map[string]func(){
			"acquired":      func() { c.acquired(ctx, r, l, nil, 1) },
			"contended":     func() { c.contended(ctx, r, held) },
			"failed":        func() { c.acquired(ctx, r, nil, failure, 1) },
			"renewed":       func() { c.renewed(ctx, l, nil, 1, 0) },
			"renewal fails": func() { c.renewed(ctx, l, failure, 1, 1) },
			"released":      func() { c.released(ctx, l, nil) },
			"release fails": func() { c.released(ctx, l, failure) },
			"lost":          func() { c.lost(ctx, l, guard.ErrLeaseLost) },
			"asked":         func() { l.Valid(); l.Err(); l.Remaining() },
		} {
			if observer != nil && (strings.Contains(what, "fail") || what == "lost") {
				continue
			}
			if n := testing.AllocsPerRun(100, f); n != 0 {
				t.Errorf("%s, told to %s: %v allocations", what, name, n)
			}
		}
	}
	if told.Surface != "lock" {
		t.Errorf("the observer was not told: %+v", told)
	}
}
