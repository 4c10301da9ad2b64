package explore

import (
	"slices"

	"github.com/fencepost-go/fencepost/guard"
)

func rowInvariants(c rowConfig) []invariant[rowState] {
	out := []invariant[rowState]{
		{P1, "no write takes effect below the mark", func(s *rowState) bool { return !s.stale }},
	}
	switch {
	case c.restored:
		return append(out, invariant[rowState]{P4, "one token does not write under two leases", func(s *rowState) bool { return !s.shared }})
	case c.rule == guard.OncePerToken:
		return append(out, invariant[rowState]{Once, "a token writes once", func(s *rowState) bool { return !s.again }})
	}
	return append(out,
		invariant[rowState]{P2, "no older holder writes between a newer one's read and write", func(s *rowState) bool { return !s.lost }},
		invariant[rowState]{P2, "what was read of an older holder after the raise survives a crash", func(s *rowState) bool { return !s.undone }},
		invariant[rowState]{P3, "every grant's token is above all before it", func(s *rowState) bool { return !s.repeated }},
		invariant[rowState]{P6, "the holder whose claim is the mark is not refused", func(s *rowState) bool { return !s.refused }})
}

func rowGoals(c rowConfig) []goal[rowState] {
	out := []goal[rowState]{
		{says: "writes: refused as stale"},
		{"two holders have written", func(s *rowState) bool {
			return slices.ContainsFunc(s.log[:], func(e rowEntry) bool { return e.write && e.token == 1 }) &&
				slices.ContainsFunc(s.log[:], func(e rowEntry) bool { return e.write && e.token == 2 })
		}},
	}
	switch {
	case c.restored:
		return append(out, goal[rowState]{says: "refused as conflict"})
	case c.rule == guard.OncePerToken:
		return append(out, goal[rowState]{says: "refused as spent"})
	}
	return append(out, goal[rowState]{says: "without the commits that were not flushed"},
		goal[rowState]{says: "raises the row's mark: refused as stale"})
}

func rowWorkerLess(a, b *rowWorker) bool {
	switch {
	case a.lease != b.lease: // no two workers share a lease, except none
		return a.lease < b.lease
	default:
		return a.pc < b.pc
	}
}

// sortWorkers orders a few workers; insertion is faster than a general sort.
func sortWorkers[W any](w []W, less func(a, b *W) bool) {
	for i := 1; i < len(w); i++ {
		for k := i; k > 0 && less(&w[k], &w[k-1]); k-- {
			w[k], w[k-1] = w[k-1], w[k]
		}
	}
}
