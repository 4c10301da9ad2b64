package explore

import (
	"sync"
	"testing"
	"time"
)

// The protocols as they are built break no promise, each mutant breaks the one
// that it is there for, and each promise of a protocol is broken by a mutant.
func TestProtocolsAndMutants(t *testing.T) {
	var mu sync.Mutex
	checked, violated := map[string]bool{}, map[string]bool{}
	t.Run("all", func(t *testing.T) {
		for _, model := range correct {
			m := model()
			t.Run("protocol", func(t *testing.T) {
				t.Parallel()
				r := m.run()
				t.Logf("%s: %d workers, %d states, %d transitions, %v", r.model, r.workers, r.states, r.transitions, r.took.Round(time.Millisecond))
				if r.broken != "" {
					t.Errorf("a promise does not hold\n%s", r)
				}
				for _, goal := range r.missed {
					t.Errorf("it never happens that: %s", goal)
				}
				mu.Lock()
				defer mu.Unlock()
				for _, promise := range r.promises {
					checked[promise] = true
				}
			})
		}
		names := map[string]bool{}
		for _, m := range mutants {
			if names[m.name] || m.what == "" {
				t.Errorf("mutant %q is there twice, or does not say what was taken away", m.name)
			}
			names[m.name] = true
			t.Run(m.name, func(t *testing.T) {
				t.Parallel()
				r := m.run()
				t.Logf("%s\n%s", m.what, r)
				if r.broken != m.breaks {
					t.Errorf("%s: broke %q, expected %s", m.what, r.broken, m.breaks)
				}
				mu.Lock()
				defer mu.Unlock()
				violated[string(r.broken)+": "+r.says] = true
			})
		}
	})
	// An invariant that nothing violates might be one that nothing can violate.
	for promise := range checked {
		if !violated[promise] {
			t.Errorf("no mutant violates %q", promise)
		}
	}
	if len(mutants) < 12 || len(checked) < 12 {
		t.Errorf("%d mutants, %d promises", len(mutants), len(checked))
	}
}

// A counterexample is readable, and the shortest possible.
func TestCounterexample(t *testing.T) {
	m := mutant{breaks: P1, model: row(rowBase, func(c *rowConfig) { c.noClaim = true })}
	got := m.run()
	got.last = ""
	if want := "row violates P1: no write takes effect below the mark; a shortest way, in 7 steps:\n" +
		"A: acquires the lease\nA: raises the row's mark\nA: reads the row\nclock: the lease expires\n" +
		"B: acquires the lease\nB: raises the row's mark\nA: writes\nleads to "; got.String() != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}
