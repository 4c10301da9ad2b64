package guardtest

import (
	"context"
	"fmt"
	"math"
	"strings"

	"github.com/fencepost-go/fencepost/guard"
)

// sequences are the cases of one caller after the other. The simple ones come first:
// their findings explain those of the later ones.
var sequences = []testCase{
	// Tokens, on one resource.
	{name: "P6/unknown-resource-has-no-mark", run: inOrder(hasMark(resource, guard.Mark{}), hasMark(resource, guard.Mark{}),
		// Reading must not have left a mark for Retire to count.
		retires(future, 0, -1))},
	{name: "P6/new-resource-is-admitted", run: inOrder(admitted(claim(10, "a")), hasMark(resource, guard.Mark{Token: 10, LeaseID: "a"}))},
	{name: "P6/same-claim-is-admitted-again", run: each([]guard.Claim{claim(10, "a"), claim(11, "")}, func(c guard.Claim) step {
		return inOrder(admitted(c, c, c), hasMark(resource, markOf(c)))
	})},
	// A step of one, a gap, and one lease with a new token.
	{name: "P1/higher-token-raises", run: each([]guard.Claim{claim(10, "a"), claim(11, "b"), claim(1000, "c"), claim(1001, "c"), claim(1002, "")}, func(c guard.Claim) step {
		return inOrder(admitted(c), hasMark(resource, markOf(c)))
	})},
	{name: "P1/lower-token-is-stale", run: inOrder(admitted(claim(10, "a"), claim(20, "b")),
		// Under the lease of the mark, the lease of an older mark, another lease and none.
		refused(guard.ReasonStale, claim(19, "b"), claim(10, "a"), claim(1, "c"), claim(19, "")),
		admitted(claim(20, "b")))},
	{name: "P1/boundary-tokens", run: boundaryTokens},
	{name: "P3/refused-claim-changes-nothing", run: inOrder(admitted(claim(20, "b")),
		each([]guard.Claim{claim(19, "b"), claim(1, "a"), claim(20, "a"), claim(20, "")}, func(c guard.Claim) step {
			return inOrder(notAdmitted(c), hasMark(resource, guard.Mark{Token: 20, LeaseID: "b"}))
		}), retires(future, 1, 20))},
	{name: "P6/admit-returns-the-mark", run: each([]guard.Claim{claim(10, "a"), claim(10, "a"), claim(11, "b"), claim(12, ""), claim(12, "")}, returnsMark)},
	{name: "P6/stale-has-the-facts", run: inOrder(admitted(claim(20, "b")),
		each([]guard.Claim{claim(19, "b"), claim(1, "a"), claim(19, "")}, func(c guard.Claim) step {
			return rejected(guard.ReasonStale, guard.Mark{Token: 20, LeaseID: "b"}, c)
		}))},

	// Lease IDs. Only the lease of the mark counts: that of an older mark is not better
	// than any other.
	{name: "P4/other-lease-is-a-conflict", run: inOrder(admitted(claim(10, "a")), refused(guard.ReasonConflict, claim(10, "b"), claim(10, "c")),
		admitted(claim(10, "a"), claim(11, "b")), refused(guard.ReasonConflict, claim(11, "a")))},
	{name: "P4/no-lease-equals-only-no-lease", run: inOrder(admitted(claim(10, "a")), refused(guard.ReasonConflict, claim(10, "")),
		admitted(claim(11, "")), refused(guard.ReasonConflict, claim(11, "a"), claim(11, " ")), admitted(claim(11, "")))},
	{name: "P4/lease-ids-are-byte-exact", run: exactLeases},
	{name: "P4/conflict-keeps-the-lease", run: inOrder(admitted(claim(10, "a")),
		each([]guard.Claim{claim(10, "b"), claim(10, ""), claim(10, "b")}, func(c guard.Claim) step {
			return inOrder(notAdmitted(c), hasMark(resource, guard.Mark{Token: 10, LeaseID: "a"}))
		}), admitted(claim(10, "a")))},
	{name: "P6/conflict-has-the-facts", run: inOrder(admitted(claim(10, "a")),
		rejected(guard.ReasonConflict, guard.Mark{Token: 10, LeaseID: "a"}, claim(10, "b")),
		rejected(guard.ReasonConflict, guard.Mark{Token: 10, LeaseID: "a"}, claim(10, "")),
		admitted(claim(11, "")), rejected(guard.ReasonConflict, guard.Mark{Token: 11}, claim(11, "a")))},

	// Names. Each gets the next lower token, and then the next higher one: a name that is
	// mistaken for an earlier one is refused as stale, or raises the earlier one's mark.
	{name: "P6/resources-are-independent", run: eachName(func(i, n int) guard.Token { return guard.Token(n - i) })},
	{name: "P1/resources-are-byte-exact", run: eachName(func(i, n int) guard.Token { return guard.Token(i + 1) })},

	// Malformed input. With a mark, an invalid claim is invalid, not stale.
	{name: "P5/invalid-claim-is-refused", run: inOrder(refused(guard.ReasonInvalid, invalidClaims(claim(5, "a"))...),
		admitted(claim(10, "a")), refused(guard.ReasonInvalid, invalidClaims(claim(5, "a"))...))},
	{name: "P5/invalid-claim-changes-nothing", run: inOrder(
		each(invalidClaims(claim(5, "a")), func(c guard.Claim) step { return inOrder(notAdmitted(c), hasMark(resource, guard.Mark{})) }),
		admitted(claim(10, "a")),
		each(invalidClaims(claim(11, "b")), func(c guard.Claim) step { // its token would raise
			return inOrder(notAdmitted(c), hasMark(resource, guard.Mark{Token: 10, LeaseID: "a"}))
		}), retires(future, 1, 10))},
	{name: "P5/invalid-resource-has-no-mark", run: invalidHasNoMark},

	{name: "P5/ended-context-is-never-success", run: endedContext},
	{name: "P5/unavailable-means-unchanged", run: unavailableUnchanged},
	{name: "P5/call-cut-halfway-tells-the-truth", run: cutHalfway},

	// Which marks Retire deletes.
	{name: "P3/retire-before-the-zero-time-retires-nothing", run: inOrder(retires(never, 0, -1), admitted(named("r", 10)), retires(never, 0, -1),
		hasMark("r", markOf(named("r", 10))), admitted(named("new", 1)))},
	{name: "P3/retire-deletes-only-older-marks", run: inOrder(admitted(named("old", 30), named("raised", 10), named("older", 20)), cut,
		admitted(named("raised", 11), named("young", 5)), retires(atCut, 2, -1),
		hasMark("raised", markOf(named("raised", 11))), hasMark("young", markOf(named("young", 5))),
		retires(atCut, 0, -1))}, // nothing is left before that time
	// Presenting the mark again is a read. A store that wrote here would write on every
	// request, and would keep the marks of a holder that should be gone.
	{name: "P6/same-claim-again-is-no-raise", run: inOrder(admitted(named("r", 10)), cut, admitted(named("r", 10)), retires(atCut, 1, -1))},
	// The highest is neither the first nor the last of them.
	{name: "P6/retire-returns-count-and-floor", run: inOrder(retires(future, 0, guard.NoToken),
		admitted(named("a", 10), named("b", 30), named("c", 20)), retires(never, 0, guard.NoToken),
		retires(future, 3, 30), retires(future, 0, 30), admitted(named("a", 31)), retires(future, 1, 31))},

	// Resources whose mark was retired.
	{name: "P1/retired-resource-refuses-lower-tokens", run: inOrder(retired,
		refused(guard.ReasonStale, named("old", 99), named("old", 1), named("low", 39), named("low", 99), named("never seen", 99)))},
	// The retired mark may have had that very token under any lease, so not even the lease
	// that had it is admitted.
	{name: "P1/floor-itself-is-stale", run: inOrder(retired,
		refused(guard.ReasonStale, named("old", 100), guard.Claim{Resource: "old", Token: 100, LeaseID: "b"},
			guard.Claim{Resource: "old", Token: 100}, named("low", 100), named("never seen", 100)))},
	// Once above the floor again, a resource is like any other.
	{name: "P6/above-the-floor-is-admitted", run: inOrder(retired, admitted(named("old", 101), named("low", 101), named("never seen", 102)),
		hasMark("old", markOf(named("old", 101))), admitted(named("old", 101), named("old", 103)), refused(guard.ReasonStale, named("old", 102)))},
	{name: "P6/floor-is-in-the-facts", run: inOrder(retired,
		each([]guard.Claim{named("old", 99), named("old", 100), named("never seen", 1), {Resource: "low", Token: 100}}, func(c guard.Claim) step {
			return rejected(guard.ReasonStale, floorOf(100), c)
		}))},
	{name: "P6/floor-is-the-mark-of-an-unknown-resource", run: inOrder(retired,
		hasMark("old", floorOf(100)), hasMark("low", floorOf(100)), hasMark("never seen", floorOf(100)))},
	// Retiring nothing, and then a mark that lies below the floor.
	{name: "P3/floor-never-lowers", run: inOrder(admitted(named("high", 100)), cut, admitted(named("survivor", 7)), retires(atCut, 1, -1),
		retires(never, 0, 100), refused(guard.ReasonStale, named("high", 99)),
		retires(future, 1, 100), refused(guard.ReasonStale, named("high", 99), named("survivor", 8)), hasMark("survivor", floorOf(100)))},
	{name: "P6/surviving-marks-ignore-the-floor", run: inOrder(admitted(named("high", 100)), cut, admitted(named("survivor", 7)), retires(atCut, 1, -1),
		hasMark("survivor", markOf(named("survivor", 7))), admitted(named("survivor", 7)),
		rejected(guard.ReasonStale, markOf(named("survivor", 7)), named("survivor", 6)),
		rejected(guard.ReasonConflict, markOf(named("survivor", 7)), guard.Claim{Resource: "survivor", Token: 7, LeaseID: "b"}),
		admitted(named("survivor", 8)))},
	{name: "P3/refused-by-the-floor-leaves-no-mark", run: inOrder(retired,
		each([]guard.Claim{named("old", 99), named("old", 100), named("never seen", 50)}, notAdmitted), retires(future, 0, -1))},

	// Stores that several processes share. The races are run across both handles as well.
	{name: "P1/replicas-share-marks", needs: replica, run: replicasShareMarks},
	{name: "P1/replicas-share-the-floor", needs: replica, run: inOrder(admitted(named("old", 100)), retires(future, 1, -1),
		byOther(refused(guard.ReasonStale, named("old", 99), named("never seen", 100))),
		byOther(hasMark("old", floorOf(100))), byOther(admitted(named("old", 101))))},

	// Stores whose marks outlive the process.
	{name: "P3/restart-remembers-marks", needs: reopen, run: inOrder(admitted(named("r", 10), named("r", 20), named("other", 5)), restart,
		hasMark("r", markOf(named("r", 20))), refused(guard.ReasonStale, named("r", 19), named("other", 4)),
		refused(guard.ReasonConflict, guard.Claim{Resource: "r", Token: 20, LeaseID: "b"}),
		admitted(named("r", 20), named("r", 21), named("other", 5)))},
	{name: "P3/restart-remembers-the-floor", needs: reopen, run: inOrder(admitted(named("old", 100)), retires(future, 1, -1), restart,
		refused(guard.ReasonStale, named("old", 99), named("old", 100)), admitted(named("old", 101)))},
}

// retired brings the store to floor 100, with "old" and "low" retired.
var retired = inOrder(admitted(named("low", 40), named("old", 100)), retires(future, 2, -1))

// boundaryTokens finds stores that compare tokens as text, as 32 bits or as
// floating point.
func boundaryTokens(ctx context.Context, e *env) error {
	last := guard.NoToken
	for _, t := range []guard.Token{
		1, 2, 9, 10, 99, 100, 1<<31 - 1, 1 << 31, 1<<32 - 1, 1 << 32, 1<<32 + 1, 1 << 40, 1<<40 + 1,
		1 << 53, 1<<53 + 1, 1<<53 + 2, guard.MaxToken - 1, guard.MaxToken,
	} {
		steps := []step{admitted(claim(t, "a")), hasMark(resource, guard.Mark{Token: t, LeaseID: "a"})}
		if last != guard.NoToken {
			steps = append(steps, refused(guard.ReasonStale, claim(last, "a")))
		}
		if err := inOrder(steps...)(ctx, e); err != nil {
			return fmt.Errorf("token %d: %w", t, err)
		}
		last = t
	}
	return nil
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

func eachName(token func(i, n int) guard.Token) step {
	return func(ctx context.Context, e *env) error {
		names := append([]string{}, alike...)
		names = append(names,
			strings.Repeat("y", 255), strings.Repeat("y", 256),
			strings.Repeat("y", guard.MaxResourceLen-1), strings.Repeat("y", guard.MaxResourceLen),
			strings.Repeat("語", guard.MaxResourceLen/3),
		)
		var first, then []step
		for i, name := range names {
			c := guard.Claim{Resource: name, Token: token(i, len(names)), LeaseID: "a"}
			first, then = append(first, admitted(c)), append(then, hasMark(name, markOf(c)))
		}
		n := len(names)
		return inOrder(inOrder(first...), inOrder(then...), retires(future, int64(n), guard.Token(n)))(ctx, e)
	}
}

func exactLeases(ctx context.Context, e *env) error {
	for i, lease := range alike {
		token := guard.Token(i + 1)
		other := alike[(i+1)%len(alike)] // neighbours in the list are the likeliest to be confused
		if err := inOrder(admitted(claim(token, lease)), hasMark(resource, guard.Mark{Token: token, LeaseID: lease}),
			refused(guard.ReasonConflict, claim(token, other)), admitted(claim(token, lease)))(ctx, e); err != nil {
			return err
		}
	}
	// Every pair of the few that fold into "a", on top of the neighbours.
	for i, lease := range alike[:5] {
		token := guard.Token(1000 + i)
		if err := admitted(claim(token, lease))(ctx, e); err != nil {
			return err
		}
		for _, other := range alike[:5] {
			if other == lease {
				continue
			}
			if err := refused(guard.ReasonConflict, claim(token, other))(ctx, e); err != nil {
				return fmt.Errorf("the mark has lease %s: %w", quote(lease), err)
			}
		}
	}
	return nil
}

var invalidResources = []string{
	"",
	strings.Repeat("a", guard.MaxResourceLen+1),
	strings.Repeat("語", guard.MaxResourceLen/3) + "語", // too long in bytes, not in characters
	strings.Repeat("a", 1<<20),
	"a\x00", "\x00", "a\tb", "a\n", "a\r", "\x1b[31m", "a\x1f", "a\x7f", // C0 and DEL
	"a\u0080", "a\u0085", "\u009f", // C1
	"\xff", "a\xc3", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", // truncated, overlong, surrogate, too high
}

var invalidTokens = []guard.Token{0, -1, math.MaxInt64, math.MinInt64, math.MinInt64 + 1, -1 << 32}

var invalidLeases = []string{
	strings.Repeat("a", guard.MaxLeaseIDLen+1), strings.Repeat("語", 43), strings.Repeat("a", 1<<20),
	"\x00", "a\x00b", "a\n", "\x7f", "\u0085", "\xff", "a\xc3",
}

// invalidClaims returns claims with one invalid field each; the other fields
// are those of c.
func invalidClaims(c guard.Claim) []guard.Claim {
	var out []guard.Claim
	for _, r := range invalidResources {
		out = append(out, guard.Claim{Resource: r, Token: c.Token, LeaseID: c.LeaseID})
	}
	for _, t := range invalidTokens {
		out = append(out, guard.Claim{Resource: c.Resource, Token: t, LeaseID: c.LeaseID})
	}
	for _, l := range invalidLeases {
		out = append(out, guard.Claim{Resource: c.Resource, Token: c.Token, LeaseID: l})
	}
	return append(out, guard.Claim{})
}

func invalidHasNoMark(ctx context.Context, e *env) error {
	for _, r := range invalidResources {
		if got, err := e.store().Mark(ctx, r); guard.ReasonOf(err) != guard.ReasonInvalid {
			return fmt.Errorf("Mark(%s) = %s, %v; want an error that is guard.ErrInvalid", quote(r), showMark(got), err)
		}
	}
	return nil
}

// replicasShareMarks alternates between the handles, so that neither can respond
// from what it last saw itself.
func replicasShareMarks(ctx context.Context, e *env) error {
	for i := range 10 {
		c := claim(guard.Token(10*(i+1)), fmt.Sprint("lease ", i))
		e.first = i % 2
		if err := inOrder(admitted(c), byOther(inOrder(hasMark(resource, markOf(c)), refused(guard.ReasonStale, claim(c.Token-1, c.LeaseID)),
			refused(guard.ReasonConflict, claim(c.Token, "another")), admitted(c))))(ctx, e); err != nil {
			return fmt.Errorf("after the other handle admitted %s: %w", show(c), err)
		}
	}
	return nil
}
