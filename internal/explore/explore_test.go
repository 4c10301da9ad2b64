package explore

import (
	"bytes"
	"strings"
	"testing"
)

// All protocols and mutants, in parallel; -v prints the tables.
func TestProtocolsAndMutants(t *testing.T) {
	models := make([]Result, len(correct))
	mutants := Mutants()
	found := make([]Result, len(mutants))
	t.Run("all", func(t *testing.T) {
		for i, model := range correct {
			m := model()
			t.Run("protocol", func(t *testing.T) {
				t.Parallel()
				r := m.run()
				models[i] = r
				if r.Broken != "" {
					t.Errorf("a promise does not hold\n%s", text(t, r))
				}
				for _, goal := range r.Missed {
					t.Errorf("%s: it never happens that: %s", r.Model, goal)
				}
			})
		}
		for i, m := range mutants {
			t.Run(m.Name, func(t *testing.T) {
				t.Parallel()
				r := m.Run()
				found[i] = r
				if r.Broken != m.Breaks {
					t.Errorf("%s: broke %q, expected %s\n%s", m.What, r.Broken, m.Breaks, text(t, r))
				}
			})
		}
	})
	var out bytes.Buffer
	if err := WriteModels(&out, models); err != nil {
		t.Fatal(err)
	}
	out.WriteString("\n")
	if err := WriteMutants(&out, mutants, found); err != nil {
		t.Fatal(err)
	}
	t.Logf("\n%s", out.String())

	// An invariant that nothing violates might be one that nothing can violate.
	violated := map[string]bool{}
	for _, r := range found {
		violated[string(r.Broken)+": "+r.Says] = true
	}
	for _, r := range models {
		for _, promise := range r.Promises {
			if !violated[promise] {
				t.Errorf("%s: no mutant violates %q", r.Model, promise)
			}
		}
	}
	if len(mutants) < 12 {
		t.Errorf("%d mutants", len(mutants))
	}
}

func TestMutantsAreNamedOnce(t *testing.T) {
	names := map[string]bool{}
	for _, m := range Mutants() {
		if names[m.Name] || m.What == "" || strings.ContainsAny(m.Name, " \t") {
			t.Errorf("mutant %q is there twice, or not named properly", m.Name)
		}
		names[m.Name] = true
	}
}

// A counterexample is readable: it begins at the start, each step says who did
// what, and it is the shortest possible.
func TestCounterexample(t *testing.T) {
	for _, m := range Mutants() {
		if m.Name != "row-no-claim" {
			continue
		}
		r := m.Run()
		got := text(t, r)
		for i, want := range []string{
			"row violates P1: no write takes effect below the mark; a shortest way, in 7 steps:",
			"0", "A acquires the lease", "A raises the row's mark", "A reads the row",
			"clock the lease expires", "B acquires the lease", "B raises the row's mark", "A writes",
		} {
			lines := strings.Split(got, "\n")
			if i >= len(lines) || !strings.Contains(strings.Join(strings.Fields(lines[i]), " "), want) {
				t.Fatalf("line %d should say %q:\n%s", i, want, got)
			}
		}
		return
	}
	t.Fatal("there is no such mutant")
}

func text(t *testing.T, r Result) string {
	t.Helper()
	var out bytes.Buffer
	if err := WriteTrace(&out, r); err != nil {
		t.Fatal(err)
	}
	return out.String()
}
