package explore

import "hash/maphash"

// visited holds the reached states, in order, and where each was reached from:
// an open-addressing table of indices, so that a state is stored once and never
// moves through a map's buckets.
type visited[S comparable] struct {
	seed    maphash.Seed
	states  []S
	parents []uint32
	table   []uint32 // index + 1; 0 is empty
}

func newVisited[S comparable](start S) *visited[S] {
	v := &visited[S]{seed: maphash.MakeSeed(), table: make([]uint32, 1<<12)}
	v.add(&start, 0)
	return v
}

// add reports whether the state is new.
func (v *visited[S]) add(s *S, parent int) bool {
	if 2*len(v.states) >= len(v.table) {
		v.grow()
	}
	at := v.slot(s)
	if v.table[at] != 0 {
		return false
	}
	v.states, v.parents = append(v.states, *s), append(v.parents, uint32(parent))
	v.table[at] = uint32(len(v.states))
	return true
}

// slot returns where s is, or the empty place where it belongs.
func (v *visited[S]) slot(s *S) int {
	mask := len(v.table) - 1
	at := int(maphash.Comparable(v.seed, *s)) & mask
	for v.table[at] != 0 && v.states[v.table[at]-1] != *s {
		at = (at + 1) & mask
	}
	return at
}

func (v *visited[S]) grow() {
	v.table = make([]uint32, 4*len(v.table))
	for i := range v.states {
		v.table[v.slot(&v.states[i])] = uint32(i) + 1
	}
}
