package guardtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// raceCases are about many callers on one resource, on every handle.
var raceCases = []testCase{
	{name: "P1/no-stale-admission-among-racing-raises", promise: P1, run: racingRaises},
	{name: "P3/no-reader-sees-the-mark-fall", promise: P3, run: racingReaders},
	{name: "P4/racing-leases-of-one-token-have-one-winner", promise: P4, run: racingLeases},
	{name: "P6/one-claim-from-many-callers-is-admitted", promise: P6, run: racingSameClaim},
	{name: "P1/no-mark-is-forgotten-among-many", promise: P1, run: manyMarks},
}

// highest is the highest token that is known to have been admitted.
type highest struct{ n atomic.Int64 }

func (h *highest) load() guard.Token { return guard.Token(h.n.Load()) }

func (h *highest) raise(t guard.Token) {
	for {
		old := h.n.Load()
		if int64(t) <= old || h.n.CompareAndSwap(old, int64(t)) {
			return
		}
	}
}

// shared is a claim that is the same for every caller with the token, so that
// equal tokens do not conflict.
func shared(name string, t guard.Token) guard.Claim {
	return guard.Claim{Resource: name, Token: t, LeaseID: "lease of " + t.String()}
}

// pause lets the callers of a store that is fast and never waits overlap in
// varying ways, instead of one making all its calls within a time slice.
func pause(rng *rand.Rand) {
	if rng.IntN(4) == 0 {
		time.Sleep(time.Duration(rng.Int64N(int64(100 * time.Microsecond))))
	}
}

// attempt presents c and checks the verdict against what was acknowledged
// before the call began. Only a stale refusal is allowed.
func attempt(ctx context.Context, s guard.Store, acked *highest, c guard.Claim) error {
	low := acked.load()
	_, err := s.Admit(ctx, c)
	switch {
	case err == nil && c.Token < low:
		return fmt.Errorf("Admit(%s) was admitted, though it began after token %d was", show(c), low)
	case err == nil:
		acked.raise(c.Token)
	case guard.ReasonOf(err) != guard.ReasonStale:
		return fmt.Errorf("Admit(%s) = %w (%s); want it admitted or stale", show(c), err, guard.ReasonOf(err))
	}
	return nil
}

func racingRaises(ctx context.Context, e *env) error {
	var acked highest
	err := e.race(ctx, e.Goroutines, func(ctx context.Context, i int) error {
		return raiseOften(ctx, e.Operations, e.handle(i), e.rand(i), &acked)
	})
	if err != nil {
		return err
	}
	// The mark is the highest of all: no raise was lost, none was invented.
	for i := range e.handles {
		if err := hasMark(ctx, e.handle(i), resource, markOf(shared(resource, acked.load()))); err != nil {
			return err
		}
	}
	return nil
}

func racingReaders(ctx context.Context, e *env) error {
	var (
		acked   highest
		writing atomic.Int64
	)
	// A writer for each reader, at least one reader for each handle.
	writers := max(e.Goroutines/2, len(e.handles))
	writing.Store(int64(writers))
	return e.race(ctx, 2*writers, func(ctx context.Context, i int) error {
		s, rng := e.handle(i), e.rand(i)
		if i < writers {
			defer writing.Add(-1)
			return raiseOften(ctx, e.Operations, s, rng, &acked)
		}
		seen := guard.NoToken
		for writing.Load() > 0 { // readers may be faster, but must not finish first
			pause(rng)
			low := max(seen, acked.load())
			got, err := s.Mark(ctx, resource)
			switch {
			case err != nil:
				return fmt.Errorf("reading the mark: %w", err)
			case got.Token < low:
				return fmt.Errorf("a reader got %s, though token %d was seen or admitted before the call began", showMark(got), low)
			case got != (guard.Mark{}) && got != markOf(shared(resource, got.Token)):
				return fmt.Errorf("a reader got %s, which nobody claimed", showMark(got))
			}
			seen = got.Token
		}
		return nil
	})
}

// raiseOften presents tokens close to the mark, so that every call is a close
// call.
func raiseOften(ctx context.Context, n int, s guard.Store, rng *rand.Rand, acked *highest) error {
	for range n {
		pause(rng)
		t := max(1, acked.load()-4+guard.Token(rng.IntN(8)))
		if err := attempt(ctx, s, acked, shared(resource, t)); err != nil {
			return err
		}
	}
	return nil
}

// rounds is how often a race over a single token is repeated; each round needs
// a token nobody has presented.
const rounds = 10

func racingLeases(ctx context.Context, e *env) error {
	for round := range rounds {
		// A new resource and a raise of an old one take different paths.
		for _, c := range []guard.Claim{
			named(fmt.Sprint("new ", round), 1), claim(guard.Token(round+1), ""),
		} {
			if err := oneWinner(ctx, e, c); err != nil {
				return err
			}
		}
	}
	return nil
}

// oneWinner presents c under as many leases as there are callers.
func oneWinner(ctx context.Context, e *env, c guard.Claim) error {
	under := func(i int) guard.Claim {
		return guard.Claim{Resource: c.Resource, Token: c.Token, LeaseID: fmt.Sprint("lease ", i)}
	}
	var winner, winners atomic.Int64
	err := e.race(ctx, e.Goroutines, func(ctx context.Context, i int) error {
		switch _, err := e.handle(i).Admit(ctx, under(i)); {
		case err == nil:
			winners.Add(1)
			winner.Store(int64(i))
		case guard.ReasonOf(err) != guard.ReasonConflict:
			return fmt.Errorf("Admit(%s) = %w (%s); want it admitted or a conflict", show(under(i)), err, guard.ReasonOf(err))
		}
		return nil
	})
	if err != nil {
		return err
	}
	if n := winners.Load(); n != 1 {
		return fmt.Errorf("%d leases were admitted under token %d of %s; want one", n, c.Token, quote(c.Resource))
	}
	won := under(int(winner.Load()))
	if err := hasMark(ctx, e.store(), c.Resource, markOf(won)); err != nil {
		return fmt.Errorf("%s was admitted: %w", show(won), err)
	}
	return nil
}

func racingSameClaim(ctx context.Context, e *env) error {
	for round := range rounds {
		for _, c := range []guard.Claim{
			named(fmt.Sprint("new ", round), 1), claim(guard.Token(round+1), "a"),
		} {
			err := e.race(ctx, e.Goroutines, func(ctx context.Context, i int) error {
				return admitted(ctx, e.handle(i), c)
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// manyMarks raises a few marks, then has Harness.Volume other claims admitted,
// half of them for new resources, and presents lower tokens to all: a store
// that evicts or wraps around has forgotten some of them.
func manyMarks(ctx context.Context, e *env) error {
	const early = 4
	name := func(i int) string { return fmt.Sprint(resource, " ", i) }
	for i := range early {
		if err := admitted(ctx, e.handle(i), guard.Claim{Resource: name(i), Token: 10, LeaseID: "a"}); err != nil {
			return err
		}
	}
	each := (e.Volume + e.Goroutines - 1) / e.Goroutines
	if err := e.race(ctx, e.Goroutines, func(ctx context.Context, i int) error {
		for n := range each {
			c := guard.Claim{Resource: name(early + i*each + n/2*2), Token: guard.Token(10 + n%2), LeaseID: "a"}
			if err := admitted(ctx, e.handle(i), c); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	return e.race(ctx, e.Goroutines, func(ctx context.Context, i int) error {
		s := e.handle(i + 1)
		for n := i; n < early; n += e.Goroutines {
			if err := refused(ctx, s, guard.ReasonStale, guard.Claim{Resource: name(n), Token: 9, LeaseID: "a"}); err != nil {
				return err
			}
		}
		for n := 0; n < each; n += 20 {
			if err := refused(ctx, s, guard.ReasonStale, guard.Claim{Resource: name(early + i*each + n), Token: 9, LeaseID: "a"}); err != nil {
				return err
			}
		}
		return nil
	})
}
