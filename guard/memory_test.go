package guard_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/guard/guardtest"
)

func TestMemoryKeepsThePromises(t *testing.T) {
	guardtest.Run(t, guardtest.Harness{
		New:    func(context.Context) (guard.Store, error) { return guard.NewMemory(nil), nil },
		Margin: 2 * time.Millisecond, // it reads the test's own clock
	})
}

func TestMemoryIsBounded(t *testing.T) {
	const limit = 3
	m := guard.NewMemory(&guard.MemoryOptions{MaxResources: limit})
	claim := func(i int, token guard.Token) guard.Claim {
		return guard.Claim{Resource: fmt.Sprint("r", i), Token: token, LeaseID: "a"}
	}
	admit := func(c guard.Claim, want error) {
		t.Helper()
		if _, err := m.Admit(t.Context(), c); !errors.Is(err, want) {
			t.Errorf("Admit(%+v) = %v; want %v", c, err, want)
		}
	}
	for i := range limit {
		admit(claim(i, 10), nil)
	}
	for range 2 { // a refusal must not take room either
		admit(claim(limit, 99), guard.ErrUnavailable)
	}
	if mark, err := m.Mark(t.Context(), claim(limit, 99).Resource); err != nil || mark != (guard.Mark{}) {
		t.Errorf("the refused resource has the mark %+v, %v", mark, err)
	}
	// Those that are in go on, and none was evicted.
	for i := range limit {
		admit(claim(i, 10), nil)
		admit(claim(i, 11), nil)
		admit(claim(i, 10), guard.ErrStale)
	}
	// What needs no room is decided though the store is full.
	admit(guard.Claim{Resource: "new", Token: -1}, guard.ErrInvalid)

	r, err := m.Retire(t.Context(), time.Now().Add(time.Hour))
	if want := (guard.Retired{Count: limit, Floor: 11}); err != nil || r != want {
		t.Fatalf("Retire = %+v, %v; want %+v", r, err, want)
	}
	admit(claim(limit, 11), guard.ErrStale) // takes no room
	for i := range limit {
		admit(claim(limit+i, 12), nil)
	}
	admit(claim(0, 12), guard.ErrUnavailable)
	admit(claim(0, 11), guard.ErrStale)
}

func TestMemoryOptions(t *testing.T) {
	for _, opts := range []*guard.MemoryOptions{nil, {}} {
		m := guard.NewMemory(opts)
		for i := range 1000 {
			if _, err := m.Admit(t.Context(), guard.Claim{Resource: fmt.Sprint("r", i), Token: 1}); err != nil {
				t.Fatal(err)
			}
		}
	}
	defer func() {
		if p := recover(); p == nil {
			t.Error("a negative MaxResources does not panic")
		}
	}()
	guard.NewMemory(&guard.MemoryOptions{MaxResources: -1})
}

// TestMemoryReadsAllocateNothing: a holder that writes often presents its
// token often.
func TestMemoryReadsAllocateNothing(t *testing.T) {
	m, ctx := guard.NewMemory(nil), t.Context()
	claim := guard.Claim{Resource: "tenant_123:billing-close:2026-04", Token: 10, LeaseID: "a"}
	if n := testing.AllocsPerRun(1000, func() {
		if _, err := m.Admit(ctx, claim); err != nil {
			panic(err)
		}
	}); n != 0 {
		t.Errorf("Admit of the mark: %v allocations; want none", n)
	}
	if n := testing.AllocsPerRun(1000, func() {
		if _, err := m.Mark(ctx, claim.Resource); err != nil {
			panic(err)
		}
	}); n != 0 {
		t.Errorf("Mark: %v allocations; want none", n)
	}
}
