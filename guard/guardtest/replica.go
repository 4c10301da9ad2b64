package guardtest

import (
	"context"
	"fmt"

	"github.com/fencepost-go/fencepost/guard"
)

// replicaCases run on stores that several processes share. The races are run
// across both handles as well.
var replicaCases = []testCase{
	{name: "P1/replicas-share-marks", promise: P1, needs: replica, run: replicasShareMarks},
	{name: "P1/replicas-share-the-floor", promise: P1, needs: replica, run: replicasShareFloor},
}

// reopenCases run on stores whose marks outlive the process.
var reopenCases = []testCase{
	{name: "P3/restart-remembers-marks", promise: P3, needs: reopen, run: reopenMarks},
	{name: "P3/restart-remembers-the-floor", promise: P3, needs: reopen, run: reopenFloor},
}

// replicasShareMarks alternates between the handles, so that neither can respond
// from what it last saw itself.
func replicasShareMarks(ctx context.Context, e *env) error {
	for i := range 10 {
		c := claim(guard.Token(10*(i+1)), fmt.Sprint("lease ", i))
		one, other := e.handle(i), e.handle(i+1)
		if err := inOrder(
			func() error { return admitted(ctx, one, c) },
			func() error { return hasMark(ctx, other, resource, markOf(c)) },
			func() error { return refused(ctx, other, guard.ReasonStale, claim(c.Token-1, c.LeaseID)) },
			func() error { return refused(ctx, other, guard.ReasonConflict, claim(c.Token, "another")) },
			func() error { return admitted(ctx, other, c) },
		); err != nil {
			return fmt.Errorf("after the other handle admitted %s: %w", show(c), err)
		}
	}
	return nil
}

func replicasShareFloor(ctx context.Context, e *env) error {
	one, other := e.handle(0), e.handle(1)
	return inOrder(
		func() error { return admitted(ctx, other, named("old", 100)) },
		func() error { return retires(ctx, one, future(), 1, -1) },
		func() error {
			return refused(ctx, other, guard.ReasonStale, named("old", 99), named("never seen", 100))
		},
		func() error { return hasMark(ctx, other, "old", floorOf(100)) },
		func() error { return admitted(ctx, other, named("old", 101)) },
	)
}

func reopenMarks(ctx context.Context, e *env) error {
	return inOrder(
		func() error { return admitted(ctx, e.store(), named("r", 10), named("r", 20), named("other", 5)) },
		func() error { return e.restart(ctx) },
		func() error { return hasMark(ctx, e.store(), "r", markOf(named("r", 20))) },
		func() error { return refused(ctx, e.store(), guard.ReasonStale, named("r", 19), named("other", 4)) },
		func() error {
			return refused(ctx, e.store(), guard.ReasonConflict, guard.Claim{Resource: "r", Token: 20, LeaseID: "b"})
		},
		func() error { return admitted(ctx, e.store(), named("r", 20), named("r", 21), named("other", 5)) },
	)
}

func reopenFloor(ctx context.Context, e *env) error {
	return inOrder(
		func() error { return admitted(ctx, e.store(), named("old", 100)) },
		func() error { return retires(ctx, e.store(), future(), 1, -1) },
		func() error { return e.restart(ctx) },
		func() error { return refused(ctx, e.store(), guard.ReasonStale, named("old", 99), named("old", 100)) },
		func() error { return admitted(ctx, e.store(), named("old", 101)) },
	)
}
