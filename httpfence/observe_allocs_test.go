package httpfence

import (
	"context"
	"net/http/httptest"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
)

// TestTellingNobodyAllocatesNothing: without an observer and a logger a report
// costs no allocation; with an observer, one of a success neither.
func TestTellingNobodyAllocatesNothing(t *testing.T) {
	r := httptest.NewRequest("POST", "/", nil)
	claim := guard.Claim{Resource: "r", Token: 1, LeaseID: "l"}
	told := 0
	for name, observer := range map[string]guard.Observer{
		"nobody": nil, "an observer": guard.ObserverFunc(func(context.Context, guard.Event) { told++ }),
	} {
		m := &Middleware{observer: observer}
		if n := testing.AllocsPerRun(1000, func() {
			start := m.clock()
			m.report(r, guard.OpCheck, start, claim, guard.Mark{Token: 1}, nil, false)
		}); n != 0 {
			t.Errorf("told to %s: %v allocations", name, n)
		}
	}
	if told == 0 {
		t.Error("the observer was not told")
	}
}
