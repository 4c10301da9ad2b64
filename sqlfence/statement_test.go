package sqlfence

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/fencepost-go/fencepost/internal/longtest"
)

// TestStatementsRemembered: what a table remembers is what it would build
// again, whatever sets it was given before, however alike they look, and the
// number is bounded.
func TestStatementsRemembered(t *testing.T) {
	names := []string{"a", "b", " 1:a", "a 1:b", "a=0 1:b", "=", "1", "a=1 2:$1"}
	exprs := []Expr{Raw("$1", 1), Raw("$1", 2), Raw("now()"), Raw("$2 || $1", 1, 2), Raw("$1 ", 1)}
	shared := mockTable(t)
	var wg sync.WaitGroup
	for worker := range 4 {
		rng := rand.New(rand.NewPCG(rand.Uint64(), uint64(worker)))
		wg.Go(func() {
			for range longtest.ByLength(300, 4000) {
				set := Set{}
				for range 1 + rng.IntN(3) {
					if set[names[rng.IntN(len(names))]] = any(rng.IntN(9)); rng.IntN(2) == 0 {
						set[names[rng.IntN(len(names))]] = exprs[rng.IntN(len(exprs))]
					}
				}
				got, err := shared.statement(updates, claimOf("r", 5), Key{7}, set, nil)
				if err != nil {
					t.Error(err)
				}
				want, err := mockTable(t).statement(updates, claimOf("r", 5), Key{7}, set, nil)
				if err != nil || got.sql != want.sql || !slices.Equal(got.args, want.args) {
					t.Errorf("%v: got %s %v, want %s %v, %v", set, got.sql, got.args, want.sql, want.args, err)
				}
			}
		})
	}
	wg.Wait()
	for i := range 2 * maxStatements {
		if _, err := shared.statement(updates, claimOf("r", 5), Key{7}, Set{fmt.Sprint("column", i): 1}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(*shared.statements.known.Load()); n != maxStatements {
		t.Errorf("%d statements are remembered, want %d", n, maxStatements)
	}
}
