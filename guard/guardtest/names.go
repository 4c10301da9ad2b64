package guardtest

import (
	"context"
	"fmt"
	"strings"

	"github.com/fencepost-go/fencepost/guard"
)

// nameCases are about the identity of resources.
var nameCases = []testCase{
	{name: "P6/resources-are-independent", promise: P6, run: independentResources},
	{name: "P1/resources-are-byte-exact", promise: P1, run: exactResources},
}

// leaseCases are about lease IDs.
var leaseCases = []testCase{
	{name: "P4/other-lease-is-a-conflict", promise: P4, run: otherLease},
	{name: "P4/no-lease-equals-only-no-lease", promise: P4, run: noLease},
	{name: "P4/lease-ids-are-byte-exact", promise: P4, run: exactLeases},
	{name: "P4/conflict-keeps-the-lease", promise: P4, run: conflictKeepsLease},
	{name: "P6/conflict-has-the-facts", promise: P6, run: conflictFacts},
}

// alike are texts that a case-folding, trimming, normalising, truncating or
// pattern-matching comparison would confuse. None is empty and each has at most
// 128 bytes, so that they serve as lease IDs too.
var alike = []string{
	"a", "A", "a ", " a", "ａ", // case, space, full width
	"\u00e9", "e\u0301", "\u00c9", "E\u0301", "e", // é composed and decomposed
	"\u00df", "ss", // folded to one by some collations
	"a:b", "a:b:", "a:b:c", "a%3Ab", // components and an escape
	"a%", "a_", "a*", "a?", "ab", // patterns
	`a"`, "a'", "a''", "a`", `a\`, `a\\`, // quotes
	"1", "01", "1.0", // numbers
	"a\u00ad", "a\u200b", "a\ufeff", // invisible
	"日本語", "日本", "\U0001f600", "\U0001f601", // beyond the BMP too
	strings.Repeat("x", 63), strings.Repeat("x", 64), // an SQL identifier's length
	strings.Repeat("x", 127), strings.Repeat("x", 128),
}

// independentResources gives each name the next lower token: a name mistaken
// for an earlier one would be refused as stale.
func independentResources(ctx context.Context, e *env) error {
	return eachName(ctx, e.store(), func(i, n int) guard.Token { return guard.Token(n - i) })
}

// exactResources gives each name the next higher token: a name mistaken for an
// earlier one would raise the earlier one's mark.
func exactResources(ctx context.Context, e *env) error {
	return eachName(ctx, e.store(), func(i, n int) guard.Token { return guard.Token(i + 1) })
}

func eachName(ctx context.Context, s guard.Store, token func(i, n int) guard.Token) error {
	names := append([]string{}, alike...)
	names = append(names,
		strings.Repeat("y", 255), strings.Repeat("y", 256),
		strings.Repeat("y", guard.MaxResourceLen-1), strings.Repeat("y", guard.MaxResourceLen),
		strings.Repeat("語", guard.MaxResourceLen/3),
	)
	claims := make([]guard.Claim, len(names))
	for i, name := range names {
		claims[i] = guard.Claim{Resource: name, Token: token(i, len(names)), LeaseID: "a"}
		if err := admitted(ctx, s, claims[i]); err != nil {
			return fmt.Errorf("%w; nothing else has named that resource", err)
		}
	}
	for _, c := range claims {
		if err := hasMark(ctx, s, c.Resource, markOf(c)); err != nil {
			return err
		}
	}
	return retires(ctx, s, future(), int64(len(names)), guard.Token(len(names)))
}

func otherLease(ctx context.Context, e *env) error {
	s := e.store()
	return inOrder(
		func() error { return admitted(ctx, s, claim(10, "a")) },
		func() error { return refused(ctx, s, guard.ReasonConflict, claim(10, "b"), claim(10, "c")) },
		func() error { return admitted(ctx, s, claim(10, "a")) },
		// Only the lease of the mark counts: that of an older mark is not better
		// than any other.
		func() error { return admitted(ctx, s, claim(11, "b")) },
		func() error { return refused(ctx, s, guard.ReasonConflict, claim(11, "a")) },
	)
}

func noLease(ctx context.Context, e *env) error {
	s := e.store()
	return inOrder(
		func() error { return admitted(ctx, s, claim(10, "a")) },
		func() error { return refused(ctx, s, guard.ReasonConflict, claim(10, "")) },
		func() error { return admitted(ctx, s, claim(11, "")) },
		func() error { return refused(ctx, s, guard.ReasonConflict, claim(11, "a"), claim(11, " ")) },
		func() error { return admitted(ctx, s, claim(11, "")) },
	)
}

func exactLeases(ctx context.Context, e *env) error {
	s := e.store()
	for i, lease := range alike {
		token := guard.Token(i + 1)
		other := alike[(i+1)%len(alike)] // neighbours in the list are the likeliest to be confused
		if err := inOrder(
			func() error { return admitted(ctx, s, claim(token, lease)) },
			func() error { return hasMark(ctx, s, resource, guard.Mark{Token: token, LeaseID: lease}) },
			func() error { return refused(ctx, s, guard.ReasonConflict, claim(token, other)) },
			func() error { return admitted(ctx, s, claim(token, lease)) },
		); err != nil {
			return err
		}
	}
	// Every pair of the few that fold into "a", on top of the neighbours.
	for i, lease := range alike[:5] {
		token := guard.Token(1000 + i)
		if err := admitted(ctx, s, claim(token, lease)); err != nil {
			return err
		}
		for _, other := range alike[:5] {
			if other != lease {
				if err := refused(ctx, s, guard.ReasonConflict, claim(token, other)); err != nil {
					return fmt.Errorf("the mark has lease %s: %w", quote(lease), err)
				}
			}
		}
	}
	return nil
}

func conflictKeepsLease(ctx context.Context, e *env) error {
	s := e.store()
	if err := admitted(ctx, s, claim(10, "a")); err != nil {
		return err
	}
	for _, lease := range []string{"b", "", "b"} {
		if _, err := s.Admit(ctx, claim(10, lease)); err == nil {
			return fmt.Errorf("Admit(%s) was admitted over lease \"a\"", show(claim(10, lease)))
		}
		if err := hasMark(ctx, s, resource, guard.Mark{Token: 10, LeaseID: "a"}); err != nil {
			return err
		}
	}
	return admitted(ctx, s, claim(10, "a"))
}

func conflictFacts(ctx context.Context, e *env) error {
	s := e.store()
	return inOrder(
		func() error { return admitted(ctx, s, claim(10, "a")) },
		func() error {
			return rejected(ctx, s, guard.ReasonConflict, guard.Mark{Token: 10, LeaseID: "a"}, claim(10, "b"))
		},
		func() error {
			return rejected(ctx, s, guard.ReasonConflict, guard.Mark{Token: 10, LeaseID: "a"}, claim(10, ""))
		},
		func() error { return admitted(ctx, s, claim(11, "")) },
		func() error {
			return rejected(ctx, s, guard.ReasonConflict, guard.Mark{Token: 11}, claim(11, "a"))
		},
	)
}
