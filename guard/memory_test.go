package guard_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/guard/guardtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
)

func TestMemoryKeepsThePromises(t *testing.T) {
	guardtest.Run(t, guardtest.Harness{
		New:    func(context.Context) (guard.Store, error) { return guard.NewMemory(), nil },
		Margin: 2 * time.Millisecond, // it reads the test's own clock
	})
}

func TestMemoryIsBounded(t *testing.T) {
	const limit = 3
	m := guard.NewMemoryOf(limit)
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
	for range 2 { // a refusal must not take space either
		admit(claim(limit, 99), guard.ErrUnavailable)
	}
	if mark, err := m.Mark(t.Context(), claim(limit, 99).Resource); err != nil || mark != (guard.Mark{}) {
		t.Errorf("the refused resource has the mark %+v, %v", mark, err)
	}
	// Existing marks keep working, and none was evicted.
	for i := range limit {
		admit(claim(i, 10), nil)
		admit(claim(i, 11), nil)
		admit(claim(i, 10), guard.ErrStale)
	}
	// Claims that need no space are decided although the store is full.
	admit(guard.Claim{Resource: "new", Token: -1}, guard.ErrInvalid)

	r, err := m.Retire(t.Context(), time.Now().Add(time.Hour))
	if want := (guard.Retired{Count: limit, Floor: 11}); err != nil || r != want {
		t.Fatalf("Retire = %+v, %v; want %+v", r, err, want)
	}
	admit(claim(limit, 11), guard.ErrStale) // takes no space
	for i := range limit {
		admit(claim(limit+i, 12), nil)
	}
	admit(claim(0, 12), guard.ErrUnavailable)
	admit(claim(0, 11), guard.ErrStale)
}

// TestMemoryCopiesNames: the store keeps no reference to the memory of a claim,
// which may be a large request.
func TestMemoryCopiesNames(t *testing.T) {
	m := guard.NewMemory()
	request := []byte("resource lease")
	text := unsafe.String(&request[0], len(request))
	if _, err := m.Admit(t.Context(), guard.Claim{Resource: text[:8], Token: 1, LeaseID: text[9:]}); err != nil {
		t.Fatal(err)
	}
	copy(request, "xxxxxxxxxxxxxx")
	if mark, err := m.Mark(t.Context(), "resource"); err != nil || mark != (guard.Mark{Token: 1, LeaseID: "lease"}) {
		t.Errorf("the mark is %+v, %v; want what was admitted", mark, err)
	}
}

// TestMemoryReadsShareTheLock: calls that raise nothing do not wait for each
// other; a raise waits for them. The test holds the lock as a reader does.
func TestMemoryReadsShareTheLock(t *testing.T) {
	m := guard.NewMemory()
	current := guard.Claim{Resource: "r", Token: 10, LeaseID: "a"}
	if _, err := m.Admit(t.Context(), current); err != nil {
		t.Fatal(err)
	}
	unlock := guard.LockMemoryForReading(m)
	if _, err := m.Admit(t.Context(), current); err != nil {
		t.Error(err)
	}
	if _, err := m.Admit(t.Context(), guard.Claim{Resource: "r", Token: 9, LeaseID: "a"}); !errors.Is(err, guard.ErrStale) {
		t.Errorf("token 9: %v; want ErrStale", err)
	}
	if _, err := m.Mark(t.Context(), "r"); err != nil {
		t.Error(err)
	}
	// The control: a raise waits.
	done := make(chan error, 1)
	go func() {
		_, err := m.Admit(context.Background(), guard.Claim{Resource: "r", Token: 12, LeaseID: "b"})
		done <- err
	}()
	untilRaising(t)
	select {
	case err := <-done:
		t.Errorf("a raise did not wait for a reader: %v", err)
	default:
	}
	unlock()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestP1MemoryDecidesAgain: a caller that read the mark and then waited for
// another caller's raise must not put the mark back.
func TestP1MemoryDecidesAgain(t *testing.T) {
	m := guard.NewMemory()
	if _, err := m.Admit(t.Context(), guard.Claim{Resource: "r", Token: 12, LeaseID: "b"}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		claim guard.Claim
		want  error
	}{
		{guard.Claim{Resource: "r", Token: 11, LeaseID: "a"}, guard.ErrStale},
		{guard.Claim{Resource: "r", Token: 12, LeaseID: "a"}, guard.ErrConflict},
		{guard.Claim{Resource: "r", Token: 12, LeaseID: "b"}, nil},
	} {
		if mark, err := guard.RaiseMemory(m, c.claim); !errors.Is(err, c.want) || mark != (guard.Mark{Token: 12, LeaseID: "b"}) {
			t.Errorf("raise %+v = %+v, %v; want the mark 12 and %v", c.claim, mark, err, c.want)
		}
	}
}

// untilRaising returns when a goroutine waits in Admit to raise a mark.
func untilRaising(t *testing.T) {
	t.Helper()
	stacks := make([]byte, 1<<20)
	testkit.Eventually(t, "one caller to wait for the lock", func() bool {
		waiting := 0
		for _, g := range strings.Split(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
			if strings.Contains(g, "sync.(*RWMutex).Lock(") && strings.Contains(g, "guard.(*Memory).raise(") {
				waiting++
			}
		}
		return waiting == 1
	})
}

// TestMemoryReadsDoNotAllocate: a holder that writes often presents its
// token often.
func TestMemoryReadsDoNotAllocate(t *testing.T) {
	m, ctx := guard.NewMemory(), t.Context()
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
