package guardtest

import (
	"context"
	"fmt"

	"github.com/fencepost-go/fencepost/guard"
)

// retireRaceCases are about Retire among callers that raise.
var retireRaceCases = []testCase{
	{name: "P1/no-stale-admission-while-retiring", promise: P1, run: racingRetire},
	{name: "P3/floor-never-lowers-while-raising", promise: P3, run: racingFloor},
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
			if err := refused(ctx, e.handle(r), guard.ReasonStale, shared(name(r), t-1)); err != nil {
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
	got, err := s.Retire(ctx, future())
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
				if err := refused(ctx, s, guard.ReasonStale, shared(name, low)); err != nil {
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
