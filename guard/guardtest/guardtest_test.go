package guardtest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/guard/guardtest"
)

func TestMemory(t *testing.T) {
	guardtest.Run(t, guardtest.Harness{
		New:    func(context.Context) (guard.Store, error) { return guard.NewMemory(), nil },
		Margin: time.Millisecond,
	})
}

func TestUnusableHarness(t *testing.T) {
	for field, spoil := range map[string]func(*guardtest.Harness){
		"New":    func(h *guardtest.Harness) { h.New = nil },
		"Rounds": func(h *guardtest.Harness) { h.Rounds = -1 },
		"Margin": func(h *guardtest.Harness) { h.Margin = -1 },
	} {
		h := harness("")
		spoil(&h)
		got := guardtest.Check(t.Context(), h)
		if len(got) != 1 || got[0].Case != "harness" || !strings.Contains(got[0].Error(), "Harness."+field) {
			t.Errorf("%s: %v; want one failure that names the field", field, got)
		}
	}
}

// TestFailureNamesSeed: a failure shows what happened and how to repeat the run.
func TestFailureNamesSeed(t *testing.T) {
	h := harness("lower token admitted")
	h.Seed = 42
	for _, f := range guardtest.Check(t.Context(), h) {
		if s := f.Error(); !strings.Contains(s, f.Case) || !strings.Contains(s, f.Err.Error()) || !strings.Contains(s, "seed 42") {
			t.Errorf("%q lacks the case, what happened or the seed", s)
		}
		if !errors.Is(f, f.Err) {
			t.Errorf("%s does not unwrap", f.Case)
		}
	}
}

// TestSeedRepeats: the same seed gives the model the same sequence, which
// therefore fails at the same step.
func TestSeedRepeats(t *testing.T) {
	var texts [2]string
	for i := range texts {
		h := harness("no lease equals every lease")
		h.Seed = 7
		for _, f := range guardtest.Check(t.Context(), h) {
			if f.Case == "P6/agrees-with-the-model" {
				texts[i] = f.Error()
			}
		}
	}
	if texts[0] != texts[1] || texts[0] == "" {
		t.Errorf("two runs with one seed:\n%s\n%s", texts[0], texts[1])
	}
}

// TestStoresAreClosed: whatever was opened is closed once, replicas first,
// except what Reopen took over.
func TestStoresAreClosed(t *testing.T) {
	h := harness("")
	plain := h
	var open []guard.Store
	h.New = func(ctx context.Context) (guard.Store, error) {
		if len(open) != 0 {
			t.Errorf("New while %d stores are open", len(open))
		}
		s, err := plain.New(ctx)
		open = append(open, s)
		return s, err
	}
	h.Replica = func(ctx context.Context, s guard.Store) (guard.Store, error) {
		r, err := plain.Replica(ctx, s)
		open = append(open, r)
		return r, err
	}
	h.Reopen = func(ctx context.Context, s guard.Store) (guard.Store, error) {
		r, err := plain.Reopen(ctx, s)
		open[0] = r
		return r, err
	}
	h.Close = func(s guard.Store) error {
		if last := len(open) - 1; open[last] != s {
			t.Error("closed out of order")
		}
		open = open[:len(open)-1]
		return nil
	}
	for _, f := range guardtest.Check(t.Context(), h) {
		t.Error(f)
	}
	if len(open) != 0 {
		t.Errorf("%d stores were left open", len(open))
	}
}

// TestHarnessErrorsAreFailures: a store that cannot be opened must not pass.
func TestHarnessErrorsAreFailures(t *testing.T) {
	broken := errors.New("broken")
	cannot := func(context.Context, guard.Store) (guard.Store, error) { return nil, broken }
	all := len(guardtest.CaseNames(harness("")))
	for name, c := range map[string]struct {
		spoil func(*guardtest.Harness)
		want  int
	}{
		"New": {func(h *guardtest.Harness) {
			h.New = func(context.Context) (guard.Store, error) { return nil, broken }
		}, all},
		"Replica": {func(h *guardtest.Harness) { h.Replica = cannot }, all - 2},
		"Reopen":  {func(h *guardtest.Harness) { h.Reopen = cannot }, 2},
		"Close":   {func(h *guardtest.Harness) { h.Close = func(guard.Store) error { return broken } }, all},
	} {
		h := harness("")
		h.Rounds = 4 // the store is not under test
		c.spoil(&h)
		got := guardtest.Check(t.Context(), h)
		if len(got) != c.want {
			t.Errorf("%s: %d cases failed; want %d", name, len(got), c.want)
		}
		for _, f := range got {
			if !errors.Is(f, broken) || !strings.Contains(f.Error(), "Harness."+name) {
				t.Errorf("%s: %v", name, f)
			}
		}
	}
}

// TestCapabilitiesAreOptional: what is not declared is not tested.
func TestCapabilitiesAreOptional(t *testing.T) {
	h := harness("forgets at restart")
	h.Reopen, h.Replica = nil, nil
	for _, f := range guardtest.Check(t.Context(), h) {
		t.Error(f)
	}
}

func ExampleCheck() {
	// A store that never refuses: the suite reports what that breaks.
	failures := guardtest.Check(context.Background(), guardtest.Harness{
		New: func(context.Context) (guard.Store, error) { return yes{guard.NewMemory()}, nil },
	})
	for _, f := range failures {
		if strings.HasPrefix(f.Case, "P1/") {
			fmt.Println(f.Case)
			fmt.Println(f.Err)
			break
		}
	}
	// Output:
	// P1/lower-token-is-stale
	// Admit(token 19 of "tenant_123:billing-close:2026-04" under lease "b") was admitted; want it refused as stale
}

type yes struct{ guard.Store }

func (s yes) Admit(ctx context.Context, c guard.Claim) (guard.Mark, error) {
	mark, err := s.Store.Admit(ctx, c)
	if errors.Is(err, guard.ErrStale) {
		err = nil
	}
	return mark, err
}
