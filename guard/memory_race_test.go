package guard_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// counts is what readers saw and should not have: marks below one whose raise
// had been acknowledged before the reader asked, marks with the lease ID of
// another token, and stale claims that were admitted.
type counts struct{ raised, below, torn, admitted atomic.Int64 }

// readBesideRaises reads marks while marks are raised, resources are added, so
// that the store has to make room, and all are retired now and then. It ends
// when enough says so, or after a time that no machine should need.
func readBesideRaises(t *testing.T, s guard.Store, enough func(*counts) bool) *counts {
	const resources, writers, readers = 16, 3, 3
	var (
		n      counts
		issued atomic.Int64
		acked  [resources]atomic.Int64
		wg     sync.WaitGroup
	)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	bg := context.Background() // a call is never cut off, only the loops are
	name := func(r int) string { return fmt.Sprint("account-", r) }
	lease := func(token guard.Token) string { return "lease-" + token.String() }
	loop := func(goroutines int, f func(*rand.Rand)) {
		for i := range goroutines {
			wg.Go(func() {
				for rng := rand.New(rand.NewPCG(uint64(goroutines), uint64(i))); ctx.Err() == nil; {
					f(rng)
				}
			})
		}
	}
	loop(writers, func(rng *rand.Rand) {
		r, token := rng.IntN(resources), guard.Token(issued.Add(1))
		_, err := s.Admit(bg, guard.Claim{Resource: name(r), Token: token, LeaseID: lease(token)})
		switch guard.ReasonOf(err) {
		case guard.ReasonNone:
			n.raised.Add(1)
			for old := acked[r].Load(); old < int64(token) && !acked[r].CompareAndSwap(old, int64(token)); old = acked[r].Load() {
			}
		case guard.ReasonStale: // a writer with a newer token was faster, or Retire
		default:
			t.Error(err)
		}
	})
	loop(1, func(rng *rand.Rand) { // makes the store grow, and shrink
		token := guard.Token(issued.Add(1))
		if _, err := s.Admit(bg, guard.Claim{Resource: fmt.Sprint("new-", token), Token: token}); err != nil && guard.ReasonOf(err) != guard.ReasonStale {
			t.Error(err)
		}
		if rng.IntN(1000) == 0 {
			if _, err := s.Retire(bg, time.Now().Add(time.Hour)); err != nil {
				t.Error(err)
			}
		}
	})
	loop(readers, func(rng *rand.Rand) {
		r := rng.IntN(resources)
		low := guard.Token(acked[r].Load())
		mark, err := s.Mark(bg, name(r))
		switch {
		case err != nil:
			t.Error(err)
		case mark.Token < low:
			n.below.Add(1)
		case mark.Token > guard.NoToken && !mark.Floor && mark.LeaseID != lease(mark.Token):
			n.torn.Add(1)
		}
		if low > 1 {
			if _, err := s.Admit(bg, guard.Claim{Resource: name(r), Token: low - 1, LeaseID: lease(low - 1)}); err == nil {
				n.admitted.Add(1)
			}
		}
	})
	for ctx.Err() == nil && !enough(&n) {
		time.Sleep(time.Millisecond)
	}
	cancel()
	wg.Wait()
	return &n
}

// TestP1MemoryReadsWithoutLock: reading beside raises, growth and retirement
// shows no mark that was below an acknowledged one.
func TestP1MemoryReadsWithoutLock(t *testing.T) {
	const raises = 2000
	start := time.Now()
	n := readBesideRaises(t, guard.NewMemory(nil), func(n *counts) bool {
		return n.raised.Load() >= raises && time.Since(start) > 400*time.Millisecond
	})
	if n.below.Load()+n.torn.Load()+n.admitted.Load() != 0 {
		t.Errorf("%d marks below an acknowledged one, %d with another's lease ID, %d stale claims admitted",
			n.below.Load(), n.torn.Load(), n.admitted.Load())
	}
	if n.raised.Load() < raises {
		t.Errorf("only %d raises", n.raised.Load())
	}
}

// TestP1MemoryReadsWithoutLockControls: the same readers notice a store that
// reads from a table which is no longer the store's, one that puts a mark
// together from two raises, and one that compares with what it read before.
func TestP1MemoryReadsWithoutLockControls(t *testing.T) {
	below := func(n *counts) bool { return n.below.Load() > 0 }
	if !below(readBesideRaises(t, &oldReads{Store: guard.NewMemory(nil)}, below)) {
		t.Error("no reader notices marks that are read late")
	}
	torn := func(n *counts) bool { return n.torn.Load() > 0 }
	if !torn(readBesideRaises(t, &tornReads{Store: guard.NewMemory(nil)}, torn)) {
		t.Error("no reader notices marks of two raises")
	}
	admitted := func(n *counts) bool { return n.admitted.Load() > 0 }
	if !admitted(readBesideRaises(t, &oldVerdicts{Store: guard.NewMemory(nil)}, admitted)) {
		t.Error("no reader notices stale claims that are admitted")
	}
}

// oldReads answers with the mark that the call before saw.
type oldReads struct {
	guard.Store
	last sync.Map
}

func (s *oldReads) Mark(ctx context.Context, resource string) (guard.Mark, error) {
	mark, err := s.Store.Mark(ctx, resource)
	if old, ok := s.last.Swap(resource, mark); ok {
		return old.(guard.Mark), err
	}
	return mark, err
}

// tornReads takes the lease ID and the token from two readings.
type tornReads struct{ guard.Store }

func (s *tornReads) Mark(ctx context.Context, resource string) (guard.Mark, error) {
	first, _ := s.Store.Mark(ctx, resource)
	time.Sleep(time.Microsecond)
	mark, err := s.Store.Mark(ctx, resource)
	mark.LeaseID = first.LeaseID
	return mark, err
}

// oldVerdicts admits what is at most a few tokens too old.
type oldVerdicts struct{ guard.Store }

func (s *oldVerdicts) Admit(ctx context.Context, c guard.Claim) (guard.Mark, error) {
	mark, err := s.Store.Admit(ctx, c)
	if guard.ReasonOf(err) == guard.ReasonStale && c.Token+3 > mark.Token {
		return mark, nil
	}
	return mark, err
}
