package explore

import (
	"fmt"
	"testing"
)

// Two clients that each read a number and write it back plus one.
type counter struct{ value, a, b, done uint8 }

func counting(atomic bool) model[counter] {
	return model[counter]{
		name: "counter", workers: 2,
		next: func(s counter, to emit[counter]) {
			for i, local := range []*uint8{&s.a, &s.b} {
				if s.done&(1<<i) != 0 {
					continue
				}
				before := s
				who := workerNames[i]
				switch {
				case atomic:
					s.value++
					s.done |= 1 << i
					to(who, "adds one", s)
				case *local == 0:
					*local = s.value + 1
					to(who, "reads", s)
				default:
					s.value = *local
					s.done |= 1 << i
					to(who, "writes", s)
				}
				s = before
			}
		},
		final: func(s *counter) bool { return s.done == 3 },
		invariants: []invariant[counter]{{P2, "nothing is lost", func(s *counter) bool {
			return s.done != 3 || s.value == 2
		}}},
		goals: []goal[counter]{{says: "adds"}, {says: "never done"}, {"both are done", func(s *counter) bool { return s.done == 3 }}},
	}
}

func TestExplore(t *testing.T) {
	r := explore(counting(true))
	if r.broken != "" || r.states != 4 || r.transitions != 4 {
		t.Errorf("atomic: %+v", r)
	}
	if fmt.Sprint(r.missed) != "[never done]" {
		t.Errorf("goals missed: %v", r.missed)
	}
	r = explore(counting(false))
	if r.broken != P2 || len(r.trace) != 4 {
		t.Errorf("in two steps: broken %q in %d steps, expected P2 in 4", r.broken, len(r.trace))
	}
}

func TestExploreFindsWhoIsStuck(t *testing.T) {
	m := counting(true)
	m.final = func(s *counter) bool { return s.done == 3 && s.value == 0 }
	if r := explore(m); r.broken != Progress {
		t.Errorf("broken %q, expected progress", r.broken)
	}
}

// Reduction by symmetry must lose nothing: the same classes are reached without
// it, and each step of a class is a step of its representative.
func TestSymmetryLosesNothing(t *testing.T) {
	row := newRow("row", rowBase)
	row.start.w[2].pc, row.start.w[3].pc = rowDone, rowDone
	tx := newTx("transaction", txBase)
	tx.start.w[3].pc, tx.start.w[3].left = txDone, 0
	for name, check := range map[string]func(*testing.T){
		"row":               func(t *testing.T) { symmetric(t, row) },
		"transaction":       func(t *testing.T) { symmetric(t, tx) },
		"issuer, tokens":    func(t *testing.T) { symmetric(t, newIssuer("issuer", with(tokenBase, two))) },
		"issuer, deadlines": func(t *testing.T) { symmetric(t, newIssuer("issuer", with(timedBase, noFaults))) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check(t)
		})
	}
}

func two(c *issuerConfig)      { c.workers = 2 }
func noFaults(c *issuerConfig) { c.faults = 0 }

func symmetric[S comparable](t *testing.T, m model[S]) {
	t.Helper()
	reduced := reach(m, m.canon)
	full := reach(m, func(*S) {})
	classes := map[S]bool{}
	for s := range full {
		m.canon(&s)
		classes[s] = true
	}
	if len(full) <= len(reduced) {
		t.Errorf("%d states, %d with symmetry: it reduces nothing", len(full), len(reduced))
	}
	if len(classes) != len(reduced) {
		t.Errorf("%d classes are reached, %d with symmetry", len(classes), len(reduced))
	}
	for s := range classes {
		if !reduced[s] {
			t.Fatalf("a class is reached only without symmetry: %+v", s)
		}
	}
}

// reach is a search that is independent of explore.
func reach[S comparable](m model[S], canon func(*S)) map[S]bool {
	start := m.start
	canon(&start)
	seen, todo := map[S]bool{start: true}, []S{start}
	for len(todo) > 0 {
		s := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		m.next(s, func(_, _ string, after S) {
			if canon(&after); !seen[after] {
				seen[after] = true
				todo = append(todo, after)
			}
		})
	}
	return seen
}
