package guardtest

import (
	"context"
	"fmt"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// floorCases are about resources whose mark was retired.
var floorCases = []testCase{
	{name: "P1/retired-resource-refuses-lower-tokens", promise: P1, run: belowFloor},
	{name: "P1/floor-itself-is-stale", promise: P1, run: atFloor},
	{name: "P6/above-the-floor-is-admitted", promise: P6, run: aboveFloor},
	{name: "P6/floor-is-in-the-facts", promise: P6, run: floorFacts},
	{name: "P6/floor-is-the-mark-of-an-unknown-resource", promise: P6, run: floorIsMark},
	{name: "P3/floor-never-lowers", promise: P3, run: floorNeverLowers},
	{name: "P6/surviving-marks-ignore-the-floor", promise: P6, run: survivors},
	{name: "P3/refused-by-the-floor-leaves-no-mark", promise: P3, run: floorLeavesNothing},
}

// retired brings the store to floor 100, with "old" and "low" retired.
func retired(ctx context.Context, e *env) error {
	if err := admitted(ctx, e.store(), named("low", 40), named("old", 100)); err != nil {
		return err
	}
	return retires(ctx, e.store(), future(), 2, -1)
}

func belowFloor(ctx context.Context, e *env) error {
	return inOrder(
		func() error { return retired(ctx, e) },
		func() error {
			return refused(ctx, e.store(), guard.ReasonStale,
				named("old", 99), named("old", 1), named("low", 39), named("low", 99), named("never seen", 99))
		},
	)
}

// atFloor: the retired mark may have had that very token under any lease, so
// not even the lease that had it is admitted.
func atFloor(ctx context.Context, e *env) error {
	return inOrder(
		func() error { return retired(ctx, e) },
		func() error {
			return refused(ctx, e.store(), guard.ReasonStale,
				named("old", 100), guard.Claim{Resource: "old", Token: 100, LeaseID: "b"},
				guard.Claim{Resource: "old", Token: 100}, named("low", 100), named("never seen", 100))
		},
	)
}

func aboveFloor(ctx context.Context, e *env) error {
	s := e.store()
	return inOrder(
		func() error { return retired(ctx, e) },
		func() error { return admitted(ctx, s, named("old", 101), named("low", 101), named("never seen", 102)) },
		func() error { return hasMark(ctx, s, "old", markOf(named("old", 101))) },
		// Once above the floor again, a resource is like any other.
		func() error { return admitted(ctx, s, named("old", 101), named("old", 103)) },
		func() error { return refused(ctx, s, guard.ReasonStale, named("old", 102)) },
	)
}

func floorFacts(ctx context.Context, e *env) error {
	if err := retired(ctx, e); err != nil {
		return err
	}
	for _, c := range []guard.Claim{named("old", 99), named("old", 100), named("never seen", 1), {Resource: "low", Token: 100}} {
		if err := rejected(ctx, e.store(), guard.ReasonStale, floorOf(100), c); err != nil {
			return err
		}
	}
	return nil
}

func floorIsMark(ctx context.Context, e *env) error {
	if err := retired(ctx, e); err != nil {
		return err
	}
	for _, name := range []string{"old", "low", "never seen"} {
		if err := hasMark(ctx, e.store(), name, floorOf(100)); err != nil {
			return err
		}
	}
	return nil
}

func floorNeverLowers(ctx context.Context, e *env) error {
	s := e.store()
	if err := admitted(ctx, s, named("high", 100)); err != nil {
		return err
	}
	before, err := e.cut(ctx)
	if err != nil {
		return err
	}
	return inOrder(
		func() error { return admitted(ctx, s, named("survivor", 7)) },
		func() error { return retires(ctx, s, before, 1, -1) },
		// Retiring nothing, and then a mark that lies below the floor.
		func() error { return retires(ctx, s, time.Time{}, 0, 100) },
		func() error { return refused(ctx, s, guard.ReasonStale, named("high", 99)) },
		func() error { return retires(ctx, s, future(), 1, 100) },
		func() error { return refused(ctx, s, guard.ReasonStale, named("high", 99), named("survivor", 8)) },
		func() error { return hasMark(ctx, s, "survivor", floorOf(100)) },
	)
}

func survivors(ctx context.Context, e *env) error {
	s := e.store()
	if err := admitted(ctx, s, named("high", 100)); err != nil {
		return err
	}
	before, err := e.cut(ctx)
	if err != nil {
		return err
	}
	own := markOf(named("survivor", 7))
	return inOrder(
		func() error { return admitted(ctx, s, named("survivor", 7)) },
		func() error { return retires(ctx, s, before, 1, -1) },
		func() error { return hasMark(ctx, s, "survivor", own) },
		func() error { return admitted(ctx, s, named("survivor", 7)) },
		func() error { return rejected(ctx, s, guard.ReasonStale, own, named("survivor", 6)) },
		func() error {
			return rejected(ctx, s, guard.ReasonConflict, own, guard.Claim{Resource: "survivor", Token: 7, LeaseID: "b"})
		},
		func() error { return admitted(ctx, s, named("survivor", 8)) },
	)
}

func floorLeavesNothing(ctx context.Context, e *env) error {
	s := e.store()
	if err := retired(ctx, e); err != nil {
		return err
	}
	for _, c := range []guard.Claim{named("old", 99), named("old", 100), named("never seen", 50)} {
		if _, err := s.Admit(ctx, c); err == nil {
			return fmt.Errorf("Admit(%s) was admitted; the floor is 100", show(c))
		}
	}
	return retires(ctx, s, future(), 0, -1)
}
