package guardtest

import (
	"context"
	"fmt"

	"github.com/fencepost-go/fencepost/guard"
)

// admitCases are about one resource, one caller and tokens only.
var admitCases = []testCase{
	{name: "P6/unknown-resource-has-no-mark", promise: P6, run: unknownResource},
	{name: "P6/new-resource-is-admitted", promise: P6, run: newResource},
	{name: "P6/same-claim-is-admitted-again", promise: P6, run: sameClaim},
	{name: "P1/higher-token-raises", promise: P1, run: higherToken},
	{name: "P1/lower-token-is-stale", promise: P1, run: lowerToken},
	{name: "P1/boundary-tokens", promise: P1, run: boundaryTokens},
	{name: "P3/refused-claim-changes-nothing", promise: P3, run: refusedChangesNothing},
	{name: "P6/admit-returns-the-mark", promise: P6, run: returnsTheMark},
	{name: "P6/stale-has-the-facts", promise: P6, run: staleFacts},
}

func unknownResource(ctx context.Context, e *env) error {
	s := e.store()
	return inOrder(
		func() error { return hasMark(ctx, s, resource, guard.Mark{}) },
		func() error { return hasMark(ctx, s, resource, guard.Mark{}) },
		// Reading must not have left a mark for Retire to count.
		func() error { return retires(ctx, s, future(), 0, -1) },
	)
}

func newResource(ctx context.Context, e *env) error {
	s := e.store()
	return inOrder(
		func() error { return admitted(ctx, s, claim(10, "a")) },
		func() error { return hasMark(ctx, s, resource, guard.Mark{Token: 10, LeaseID: "a"}) },
	)
}

func sameClaim(ctx context.Context, e *env) error {
	s := e.store()
	for _, c := range []guard.Claim{claim(10, "a"), claim(11, "")} {
		if err := admitted(ctx, s, c, c, c); err != nil {
			return err
		}
		if err := hasMark(ctx, s, resource, markOf(c)); err != nil {
			return err
		}
	}
	return nil
}

func higherToken(ctx context.Context, e *env) error {
	s := e.store()
	// A step of one, a gap, and one lease with a new token.
	for _, c := range []guard.Claim{claim(10, "a"), claim(11, "b"), claim(1000, "c"), claim(1001, "c"), claim(1002, "")} {
		if err := admitted(ctx, s, c); err != nil {
			return err
		}
		if err := hasMark(ctx, s, resource, markOf(c)); err != nil {
			return err
		}
	}
	return nil
}

func lowerToken(ctx context.Context, e *env) error {
	s := e.store()
	return inOrder(
		func() error { return admitted(ctx, s, claim(10, "a"), claim(20, "b")) },
		// Under the lease of the mark, the lease of an older mark, another
		// lease and none.
		func() error {
			return refused(ctx, s, guard.ReasonStale, claim(19, "b"), claim(10, "a"), claim(1, "c"), claim(19, ""))
		},
		func() error { return admitted(ctx, s, claim(20, "b")) },
	)
}

// boundaryTokens finds stores that compare tokens as text, as 32 bits or as
// floating point.
func boundaryTokens(ctx context.Context, e *env) error {
	s := e.store()
	last := guard.NoToken
	for _, t := range []guard.Token{
		1, 2, 9, 10, 99, 100, 1<<31 - 1, 1 << 31, 1<<32 - 1, 1 << 32, 1<<32 + 1, 1 << 40, 1<<40 + 1,
		1 << 53, 1<<53 + 1, 1<<53 + 2, guard.MaxToken - 1, guard.MaxToken,
	} {
		if err := admitted(ctx, s, claim(t, "a")); err != nil {
			return err
		}
		if err := hasMark(ctx, s, resource, guard.Mark{Token: t, LeaseID: "a"}); err != nil {
			return err
		}
		if last == guard.NoToken {
			last = t
			continue
		}
		if err := refused(ctx, s, guard.ReasonStale, claim(last, "a")); err != nil {
			return fmt.Errorf("after token %d: %w", t, err)
		}
		last = t
	}
	return nil
}

func refusedChangesNothing(ctx context.Context, e *env) error {
	s := e.store()
	if err := admitted(ctx, s, claim(20, "b")); err != nil {
		return err
	}
	for _, c := range []guard.Claim{claim(19, "b"), claim(1, "a"), claim(20, "a"), claim(20, "")} {
		// Other cases check the reason.
		if _, err := s.Admit(ctx, c); err == nil {
			return fmt.Errorf("Admit(%s) was admitted over token 20 of lease \"b\"", show(c))
		}
		if err := hasMark(ctx, s, resource, guard.Mark{Token: 20, LeaseID: "b"}); err != nil {
			return fmt.Errorf("after Admit(%s) was refused: %w", show(c), err)
		}
	}
	return retires(ctx, s, future(), 1, 20)
}

func returnsTheMark(ctx context.Context, e *env) error {
	s := e.store()
	for _, c := range []guard.Claim{claim(10, "a"), claim(10, "a"), claim(11, "b"), claim(12, ""), claim(12, "")} {
		got, err := s.Admit(ctx, c)
		if err != nil {
			return fmt.Errorf("Admit(%s) = %w; want it admitted", show(c), err)
		}
		if want := markOf(c); got != want {
			return fmt.Errorf("Admit(%s) returned %s; want %s, the claim's own", show(c), showMark(got), showMark(want))
		}
	}
	return nil
}

func staleFacts(ctx context.Context, e *env) error {
	s := e.store()
	if err := admitted(ctx, s, claim(20, "b")); err != nil {
		return err
	}
	for _, c := range []guard.Claim{claim(19, "b"), claim(1, "a"), claim(19, "")} {
		if err := rejected(ctx, s, guard.ReasonStale, guard.Mark{Token: 20, LeaseID: "b"}, c); err != nil {
			return err
		}
	}
	return nil
}
