package s3fence

import (
	"context"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// TestTellingNobodyAllocatesNothing: without an observer an event costs no
// allocation; with one, an event of a success neither.
func TestTellingNobodyAllocatesNothing(t *testing.T) {
	ctx, start := context.Background(), time.Now()
	claim := guard.Claim{Resource: "r", Token: 1, LeaseID: "l"}
	told := 0
	for name, observer := range map[string]guard.Observer{
		"nobody": nil, "an observer": guard.ObserverFunc(func(context.Context, guard.Event) { told++ }),
	} {
		b := &Bucket{}
		b.opts.Observer = observer
		if n := testing.AllocsPerRun(1000, func() { b.observe(ctx, guard.OpWrite, claim, guard.Mark{Token: 1}, start, nil) }); n != 0 {
			t.Errorf("told to %s: %v allocations", name, n)
		}
	}
	if told == 0 {
		t.Error("the observer was not told")
	}
}
