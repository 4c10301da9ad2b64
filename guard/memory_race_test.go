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

// races raises and reads marks, and counts what readers saw and should not have:
// marks below one whose raise had been acknowledged before the reader asked,
// marks with the lease ID of another token, and stale claims that were admitted.
type races struct {
	t                     *testing.T
	s                     guard.Store
	issued                atomic.Int64
	acked                 [16]atomic.Int64 // by resource
	raised, readings      atomic.Int64
	below, torn, admitted atomic.Int64
}

// bg is used because no call is ever cancelled.
var bg = context.Background()

func nameOf(resource int) string       { return fmt.Sprint("account-", resource) }
func leaseOf(token guard.Token) string { return "lease-" + token.String() }

// raise presents the next token to a resource.
func (n *races) raise(resource int) {
	token := guard.Token(n.issued.Add(1))
	_, err := n.s.Admit(bg, guard.Claim{Resource: nameOf(resource), Token: token, LeaseID: leaseOf(token)})
	switch guard.ReasonOf(err) {
	case guard.ReasonNone:
		n.raised.Add(1)
		acked := &n.acked[resource]
		for old := acked.Load(); old < int64(token) && !acked.CompareAndSwap(old, int64(token)); old = acked.Load() {
		}
	case guard.ReasonStale: // a writer with a newer token was faster, or Retire
	default:
		n.t.Error(err)
	}
}

// read reads the mark of a resource, and presents a token that is stale.
func (n *races) read(resource int) {
	low := guard.Token(n.acked[resource].Load())
	mark, err := n.s.Mark(bg, nameOf(resource))
	n.readings.Add(1)
	switch {
	case err != nil:
		n.t.Error(err)
	case mark.Token < low:
		n.below.Add(1)
	case mark.Token > guard.NoToken && !mark.Floor && mark.LeaseID != leaseOf(mark.Token):
		n.torn.Add(1)
	}
	if low > 1 {
		if _, err := n.s.Admit(bg, guard.Claim{Resource: nameOf(resource), Token: low - 1, LeaseID: leaseOf(low - 1)}); err == nil {
			n.admitted.Add(1)
		}
	}
}

// crowd makes the store grow, and shrink now and then.
func (n *races) crowd(rng *rand.Rand) {
	token := guard.Token(n.issued.Add(1))
	if _, err := n.s.Admit(bg, guard.Claim{Resource: fmt.Sprint("new-", token), Token: token}); err != nil && guard.ReasonOf(err) != guard.ReasonStale {
		n.t.Error(err)
	}
	if rng.IntN(1000) == 0 {
		if _, err := n.s.Retire(bg, time.Now().Add(time.Hour)); err != nil {
			n.t.Error(err)
		}
	}
}

func (n *races) check(below, torn, admitted int64) {
	n.t.Helper()
	if n.below.Load() != below || n.torn.Load() != torn || n.admitted.Load() != admitted {
		n.t.Errorf("%d marks below an acknowledged one, %d with another's lease ID, %d stale claims admitted; want %d, %d, %d",
			n.below.Load(), n.torn.Load(), n.admitted.Load(), below, torn, admitted)
	}
}

// TestP1MemoryConcurrentReads reads marks while they are raised, while resources
// are added, and while all are retired now and then. No reader may see a mark
// below one whose raise had been acknowledged.
func TestP1MemoryConcurrentReads(t *testing.T) {
	const raises, readings = 40000, 40000
	n := &races{t: t, s: guard.NewMemory()}
	var wg sync.WaitGroup
	loop := func(goroutines int, f func(*rand.Rand)) {
		for i := range goroutines {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(goroutines), uint64(i)))
				for n.raised.Load() < raises || n.readings.Load() < readings {
					f(rng)
				}
			})
		}
	}
	loop(4, func(rng *rand.Rand) { n.raise(rng.IntN(len(n.acked))) })
	loop(1, n.crowd)
	loop(3, func(rng *rand.Rand) { n.read(rng.IntN(len(n.acked))) })
	wg.Wait()
	n.check(0, 0, 0)
}

// TestP1MemoryConcurrentReadsControls: the same raises and reads, one after the
// other in an order that shows the bug, detect a store that answers with an old
// mark, one that combines a mark from two raises, and one that compares with
// what it read before.
func TestP1MemoryConcurrentReadsControls(t *testing.T) {
	old := &races{t: t, s: &oldReads{Store: guard.NewMemory()}}
	old.raise(0)
	old.read(0)
	old.raise(0)
	old.read(0) // sees what the last one saw
	old.check(1, 0, 0)

	torn := &races{t: t}
	torn.s = &tornReads{Store: guard.NewMemory(), between: func() { torn.raise(0) }}
	torn.raise(0)
	torn.read(0) // a raise comes between its two halves
	torn.check(0, 1, 0)

	late := &races{t: t, s: &oldVerdicts{Store: guard.NewMemory()}}
	late.raise(0)
	late.raise(0)
	late.read(0)
	late.check(0, 0, 1)

	right := &races{t: t, s: guard.NewMemory()}
	right.raise(0)
	right.read(0)
	right.raise(0)
	right.read(0)
	right.check(0, 0, 0)
}

// oldReads answers with the mark that the previous call saw.
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
type tornReads struct {
	guard.Store
	between func()
}

func (s *tornReads) Mark(ctx context.Context, resource string) (guard.Mark, error) {
	first, _ := s.Store.Mark(ctx, resource)
	s.between()
	mark, err := s.Store.Mark(ctx, resource)
	mark.LeaseID = first.LeaseID
	return mark, err
}

// oldVerdicts admits claims that are at most a few tokens too old.
type oldVerdicts struct{ guard.Store }

func (s *oldVerdicts) Admit(ctx context.Context, c guard.Claim) (guard.Mark, error) {
	mark, err := s.Store.Admit(ctx, c)
	if guard.ReasonOf(err) == guard.ReasonStale && c.Token+3 > mark.Token {
		return mark, nil
	}
	return mark, err
}
