package sqlfence

import (
	"context"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"

	"github.com/jackc/pgx/v5"
)

// TestTellingNobodyAllocatesNothing: without an observer an event costs no
// allocation; with one, the event of a success does not either.
func TestTellingNobodyAllocatesNothing(t *testing.T) {
	ctx, start := context.Background(), time.Now()
	claim := guard.Claim{Resource: "r", Token: 1, LeaseID: "l"}
	told := 0
	for name, observer := range map[string]guard.Observer{
		"nobody": nil, "an observer": guard.ObserverFunc(func(context.Context, guard.Event) { told++ }),
	} {
		d := &DB[pgx.Tx]{opts: Options{Observer: observer}}
		if n := testing.AllocsPerRun(100, func() {
			d.observe(ctx, guard.Event{Op: guard.OpWrite, Claim: claim, Mark: markOf(claim, nil), Duration: time.Since(start)})
		}); n != 0 {
			t.Errorf("told to %s: %v allocations", name, n)
		}
	}
	if told == 0 {
		t.Error("the observer was not told")
	}
}
