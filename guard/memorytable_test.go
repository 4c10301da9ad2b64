package guard

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// TestMemoryTableIsAMap compares the store with a map over random raises and
// retirements, with names and lease IDs of every length, the longest included,
// through many rebuilds.
func TestMemoryTableIsAMap(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	m, want, floor, rebuilds := NewMemory(nil), map[string]Mark{}, NoToken, 0
	text := func(n int) string { return strings.Repeat(string(rune('a'+rng.IntN(3))), n) }
	table := m.table.Load()
	for i := range 4_000 {
		name := text(1+rng.IntN(MaxResourceLen)) + fmt.Sprint(rng.IntN(3))
		name = name[max(0, len(name)-MaxResourceLen):]
		old, known := want[name]
		if !known {
			old = Mark{Token: floor, Floor: floor != NoToken}
		}
		if got, err := m.Mark(t.Context(), name); err != nil || got != old {
			t.Fatalf("step %d: Mark(%.20q...) = %+v, %v; want %+v", i, name, got, err, old)
		}
		raised := Mark{Token: old.Token + 1 + Token(rng.Int64N(1<<40)), LeaseID: text(rng.IntN(MaxLeaseIDLen + 1))}
		if got, err := m.Admit(t.Context(), Claim{Resource: name, Token: raised.Token, LeaseID: raised.LeaseID}); err != nil || got != raised {
			t.Fatalf("step %d: Admit = %+v, %v; want %+v", i, got, err, raised)
		}
		want[name] = raised
		if i%800 == 799 {
			for _, mark := range want {
				floor = max(floor, mark.Token)
			}
			if r, err := m.Retire(t.Context(), time.Now().Add(time.Hour)); err != nil || r.Floor != floor || r.Count != int64(len(want)) {
				t.Fatalf("Retire = %+v, %v; want floor %d and %d marks", r, err, floor, len(want))
			}
			clear(want)
		}
		if m.table.Load() != table {
			table = m.table.Load()
			rebuilds++
		}
	}
	for name, mark := range want {
		if got, err := m.Mark(t.Context(), name); err != nil || got != mark {
			t.Fatalf("at the end: %+v, %v; want %+v", got, err, mark)
		}
	}
	if rebuilds < 10 {
		t.Errorf("only %d rebuilds", rebuilds)
	}
}

// TestMemoryTableComparesNames: names whose hashes are equal are two resources.
func TestMemoryTableComparesNames(t *testing.T) {
	const hash = 1<<63 | 5
	table := NewMemory(nil).table.Load().rebuilt(NoToken, 1000, nil)
	claims := []Claim{{Resource: "a", Token: 1, LeaseID: "x"}, {Resource: "b", Token: 2, LeaseID: "y"}, {Resource: "ab", Token: 3}}
	for _, c := range claims {
		if mark, known := table.mark(hash, hash, c.Resource); known {
			t.Errorf("%q has the mark %+v of another", c.Resource, mark)
		}
		table.set(hash, c, 0)
	}
	for _, c := range claims {
		if mark, known := table.mark(hash, hash, c.Resource); !known || mark != (Mark{Token: c.Token, LeaseID: c.LeaseID}) {
			t.Errorf("%q: %+v, %v", c.Resource, mark, known)
		}
	}
}

// TestMemoryDoesNotGrowByRaising: what was superseded is given back.
func TestMemoryDoesNotGrowByRaising(t *testing.T) {
	m := NewMemory(nil)
	for i := range 4_000 {
		if _, err := m.Admit(t.Context(), Claim{Resource: fmt.Sprint("resource-", i%10), Token: Token(i + 1), LeaseID: "a"}); err != nil {
			t.Fatal(err)
		}
	}
	if table := m.table.Load(); len(table.log) > 2<<10 || len(table.slots) > 16 || table.count != 10 {
		t.Errorf("%d bytes of log and %d slots for %d marks", len(table.log), len(table.slots), table.count)
	}
	if _, err := m.Retire(t.Context(), time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if table := m.table.Load(); len(table.log) > 2<<10 || table.count != 0 {
		t.Errorf("%d bytes of log for %d marks after retiring all", len(table.log), table.count)
	}
}

// TestMemoryMarkStays: the lease ID of a mark that was read stays what it was,
// whatever the store does with its memory afterwards.
func TestMemoryMarkStays(t *testing.T) {
	m := NewMemory(nil)
	var kept []Mark
	for i := range 1000 {
		if _, err := m.Admit(t.Context(), Claim{Resource: "r", Token: Token(i + 1), LeaseID: fmt.Sprint("lease-", i)}); err != nil {
			t.Fatal(err)
		}
		mark, err := m.Mark(t.Context(), "r")
		if err != nil {
			t.Fatal(err)
		}
		kept = append(kept, mark)
	}
	for i, mark := range kept {
		if want := (Mark{Token: Token(i + 1), LeaseID: fmt.Sprint("lease-", i)}); mark != want {
			t.Fatalf("%+v; want %+v", mark, want)
		}
	}
}
