package guardtest

import (
	"context"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// retireCases are about which marks Retire deletes.
var retireCases = []testCase{
	{name: "P3/retire-before-the-zero-time-retires-nothing", promise: P3, run: retireZeroTime},
	{name: "P3/retire-deletes-only-older-marks", promise: P3, run: retireOlder},
	{name: "P6/same-claim-again-is-no-raise", promise: P6, run: readIsNoRaise},
	{name: "P6/retire-returns-count-and-floor", promise: P6, run: retireReturns},
}

// named returns a claim on a resource of that name, under lease "a".
func named(name string, token guard.Token) guard.Claim {
	return guard.Claim{Resource: name, Token: token, LeaseID: "a"}
}

func retireZeroTime(ctx context.Context, e *env) error {
	s := e.store()
	return inOrder(
		func() error { return retires(ctx, s, time.Time{}, 0, -1) },
		func() error { return admitted(ctx, s, named("r", 10)) },
		func() error { return retires(ctx, s, time.Time{}, 0, -1) },
		func() error { return hasMark(ctx, s, "r", markOf(named("r", 10))) },
		func() error { return admitted(ctx, s, named("new", 1)) },
	)
}

func retireOlder(ctx context.Context, e *env) error {
	s := e.store()
	if err := admitted(ctx, s, named("old", 30), named("raised", 10), named("older", 20)); err != nil {
		return err
	}
	before, err := e.cut(ctx)
	if err != nil {
		return err
	}
	return inOrder(
		func() error { return admitted(ctx, s, named("raised", 11), named("young", 5)) },
		func() error { return retires(ctx, s, before, 2, -1) },
		func() error { return hasMark(ctx, s, "raised", markOf(named("raised", 11))) },
		func() error { return hasMark(ctx, s, "young", markOf(named("young", 5))) },
		// Nothing is left before that time.
		func() error { return retires(ctx, s, before, 0, -1) },
	)
}

// readIsNoRaise: presenting the mark again is a read. A store that wrote here
// would write on every request, and would keep the marks of a holder that
// should be gone.
func readIsNoRaise(ctx context.Context, e *env) error {
	s := e.store()
	if err := admitted(ctx, s, named("r", 10)); err != nil {
		return err
	}
	before, err := e.cut(ctx)
	if err != nil {
		return err
	}
	return inOrder(
		func() error { return admitted(ctx, s, named("r", 10)) },
		func() error { return retires(ctx, s, before, 1, -1) },
	)
}

func retireReturns(ctx context.Context, e *env) error {
	s := e.store()
	return inOrder(
		func() error { return retires(ctx, s, future(), 0, guard.NoToken) },
		// The highest is neither the first nor the last of them.
		func() error { return admitted(ctx, s, named("a", 10), named("b", 30), named("c", 20)) },
		func() error { return retires(ctx, s, time.Time{}, 0, guard.NoToken) },
		func() error { return retires(ctx, s, future(), 3, 30) },
		func() error { return retires(ctx, s, future(), 0, 30) },
		func() error { return admitted(ctx, s, named("a", 31)) },
		func() error { return retires(ctx, s, future(), 1, 31) },
	)
}
