package lockclient

import (
	"testing"
	"time"
)

// TestAskingAllocatesNothing: asking a lease whether it is valid allocates nothing.
func TestAskingAllocatesNothing(t *testing.T) {
	c := simulate(t, simulation{func() time.Duration { return 1 }}, nil)
	l := &Lease{client: c, ttl: time.Second, deadline: time.Hour, place: -1}
	if n := testing.AllocsPerRun(100, func() { l.Valid(); l.Err(); l.Remaining() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
