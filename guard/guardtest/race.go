package guardtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// races are about many callers, on every handle: on one resource, and of Retire among
// callers that raise.
var races = []testCase{
	{name: "P1/no-stale-admission-among-racing-raises", run: racingRaises},
	{name: "P3/no-reader-sees-the-mark-fall", run: racingReaders},
	{name: "P4/racing-leases-of-one-token-have-one-winner", run: racingLeases},
	{name: "P6/one-claim-from-many-callers-is-admitted", run: racingSameClaim},
	{name: "P1/no-mark-is-forgotten-among-many", run: manyMarks},
	{name: "P1/no-stale-admission-while-retiring", run: racingRetire},
	{name: "P3/floor-never-lowers-while-raising", run: racingFloor},
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
		if err := hasMarkBy(ctx, e.handle(i), resource, markOf(shared(resource, acked.load()))); err != nil {
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
	if err := hasMarkBy(ctx, e.store(), c.Resource, markOf(won)); err != nil {
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
				return admittedBy(ctx, e.handle(i), c)
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
		if err := admittedBy(ctx, e.handle(i), guard.Claim{Resource: name(i), Token: 10, LeaseID: "a"}); err != nil {
			return err
		}
	}
	each := (e.Volume + e.Goroutines - 1) / e.Goroutines
	if err := e.race(ctx, e.Goroutines, func(ctx context.Context, i int) error {
		for n := range each {
			c := guard.Claim{Resource: name(early + i*each + n/2*2), Token: guard.Token(10 + n%2), LeaseID: "a"}
			if err := admittedBy(ctx, e.handle(i), c); err != nil {
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
			if err := refusedBy(ctx, s, guard.ReasonStale, guard.Claim{Resource: name(n), Token: 9, LeaseID: "a"}); err != nil {
				return err
			}
		}
		for n := 0; n < each; n += 20 {
			if err := refusedBy(ctx, s, guard.ReasonStale, guard.Claim{Resource: name(early + i*each + n), Token: 9, LeaseID: "a"}); err != nil {
				return err
			}
		}
		return nil
	})
}

// racingRetire repeatedly deletes every mark while callers offer new tokens and
// tokens a little older than those acknowledged. A mark that is deleted before
// the floor is raised admits one of the older tokens, and so does a mark that
// was raised between being chosen and being deleted.
func racingRetire(ctx context.Context, e *env) error {
	var (
		acked       [3]highest
		next, floor highest // one issuer for all, as there is one floor for all
		name        = func(r int) string { return fmt.Sprint("resource ", r) }
	)
	err := e.race(ctx, e.Goroutines, func(ctx context.Context, i int) error {
		s, rng := e.handle(i), e.rand(i)
		for n := range e.Operations {
			pause(rng)
			if n%24 == i*3%24 { // each caller at its own steps
				if err := retireAll(ctx, s, &floor); err != nil {
					return err
				}
			}
			r := rng.IntN(len(acked))
			t := next.load() - guard.Token(rng.IntN(8))
			if rng.IntN(3) == 0 {
				t = guard.Token(next.n.Add(1))
			}
			if err := attempt(ctx, s, &acked[r], shared(name(r), max(1, t))); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for r := range acked {
		if t := acked[r].load(); t > 1 {
			if err := refusedBy(ctx, e.handle(r), guard.ReasonStale, shared(name(r), t-1)); err != nil {
				return fmt.Errorf("token %d had been admitted: %w", t, err)
			}
		}
	}
	return nil
}

// retireAll retires every mark. A floor that was returned before the call
// began is not lowered.
func retireAll(ctx context.Context, s guard.Store, told *highest) error {
	low := told.load()
	got, err := s.Retire(ctx, future(nil))
	switch {
	case err != nil:
		return fmt.Errorf("retiring: %w", err)
	case got.Floor < low:
		return fmt.Errorf("retiring returned the floor %d, though %d had been returned before the call began", got.Floor, low)
	}
	told.raise(got.Floor)
	return nil
}

// racingFloor retires from several callers at once. A floor that one of them
// got holds for every call that begins afterwards.
func racingFloor(ctx context.Context, e *env) error {
	var told, next highest
	return e.race(ctx, e.Goroutines, func(ctx context.Context, i int) error {
		s, rng, name := e.handle(i), e.rand(i), fmt.Sprint("resource ", i)
		for range max(e.Operations/4, 1) {
			pause(rng)
			// This caller's own mark is retired by now, so only the floor
			// stands between the resource and a token at the floor.
			if low := told.load(); low > guard.NoToken {
				if err := refusedBy(ctx, s, guard.ReasonStale, shared(name, low)); err != nil {
					return fmt.Errorf("the floor was %d before the call began: %w", low, err)
				}
			}
			c := shared(name, guard.Token(next.n.Add(1)))
			switch _, err := s.Admit(ctx, c); guard.ReasonOf(err) {
			case guard.ReasonNone, guard.ReasonStale: // another's Retire may have overtaken the token
			default:
				return fmt.Errorf("Admit(%s) = %w (%s); want it admitted or stale", show(c), err, guard.ReasonOf(err))
			}
			if err := retireAll(ctx, s, &told); err != nil {
				return err
			}
		}
		return nil
	})
}
