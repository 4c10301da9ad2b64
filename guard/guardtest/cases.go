package guardtest

import (
	"math"
	"strings"

	"github.com/fencepost-go/fencepost/guard"
)

// scripts are the cases of one caller after the other. The simple ones come first:
// their findings explain those of the later ones.
var scripts = []testCase{
	{name: "P6/unknown-resource-has-no-mark", run: script(look(resource, resource))},
	// A step of one, a gap, one lease with a new token, and each claim twice.
	{name: "P1/higher-token-raises", run: script(admit(claim(10, "a"), claim(10, "a"), claim(11, "b"), claim(1000, "c"), claim(1000, "c"),
		claim(1001, "c"), claim(1002, ""), claim(1002, "")))},
	// Under the lease of the mark, the lease of an older mark, another lease and none.
	{name: "P1/lower-token-is-stale", run: script(admit(claim(10, "a"), claim(20, "b"),
		claim(19, "b"), claim(10, "a"), claim(1, "c"), claim(19, ""), claim(20, "b")))},
	// Not a script, at whose end a store may refuse a floor that high.
	{name: "P1/boundary-tokens", run: admit(boundaryTokens()...)},

	// Only the lease of the mark counts: that of an older mark is not better than any other,
	// and none equals only none.
	{name: "P4/other-lease-is-a-conflict", run: script(admit(claim(10, "a"), claim(10, "b"), claim(10, "c"), claim(10, ""), claim(10, "a"),
		claim(11, "b"), claim(11, "a"), claim(12, ""), claim(12, "a"), claim(12, " "), claim(12, "")))},
	{name: "P4/lease-ids-are-byte-exact", run: script(admit(alikeLeases()...))},

	{name: "P1/resources-are-byte-exact", run: script(admit(alikeResources()...), look(alike...))},

	// With a mark, an invalid claim is invalid, not stale; and one whose token would raise.
	{name: "P5/invalid-claim-is-refused", run: script(admit(invalidClaims(claim(5, "a"))...), look(resource),
		admit(claim(10, "a")), admit(invalidClaims(claim(5, "a"))...), admit(invalidClaims(claim(11, "b"))...), look(resource))},
	{name: "P5/ended-context-is-never-success", run: endedContext},
	{name: "P5/call-cut-halfway-tells-the-truth", run: cutHalfway},

	// Which marks Retire deletes. Presenting the mark again is a read: a store that wrote here
	// would write on every request, and would keep the marks of a holder that should be gone.
	{name: "P3/retire-before-the-zero-time-retires-nothing", run: script(retire(never), admit(named("r", 10)), retire(never), look("r"),
		admit(named("new", 1)))},
	{name: "P3/retire-deletes-only-older-marks", run: script(admit(named("old", 30), named("raised", 10), named("older", 20)), cut,
		admit(named("raised", 11), named("young", 5)), retire(atCut), look("old", "raised", "older", "young"), retire(atCut))},
	{name: "P6/same-claim-again-is-no-raise", run: script(admit(named("r", 10)), cut, admit(named("r", 10)), retire(atCut))},
	// The highest is neither the first nor the last of them.
	{name: "P6/retire-returns-count-and-floor", run: script(retire(future), admit(named("a", 10), named("b", 30), named("c", 20)), retire(never),
		retire(future), retire(future), admit(named("a", 31)))},

	// Resources whose mark was retired, and one that never had any. The retired mark may have
	// had the floor's token under any lease, so not even the lease that had it is admitted.
	{name: "P1/the-floor-refuses", run: script(admit(named("low", 40), named("old", 100)), retire(future), look("old", "low", "never seen"),
		admit(named("old", 99), named("old", 1), named("low", 39), named("low", 99), named("never seen", 99), named("old", 100),
			guard.Claim{Resource: "old", Token: 100, LeaseID: "b"}, guard.Claim{Resource: "old", Token: 100}, named("low", 100),
			guard.Claim{Resource: "low", Token: 100}, named("never seen", 100), named("never seen", 1)))},
	// Once above the floor again, a resource is like any other.
	{name: "P6/above-the-floor-is-admitted", run: script(admit(named("low", 40), named("old", 100)), retire(future),
		admit(named("old", 101), named("low", 101), named("never seen", 102), named("old", 101), named("old", 103), named("old", 102)))},
	// Retiring nothing, and then a mark that lies below the floor.
	{name: "P3/floor-never-lowers", run: script(admit(named("high", 100)), cut, admit(named("survivor", 7)), retire(atCut),
		retire(never), admit(named("high", 99)), retire(future), admit(named("high", 99), named("survivor", 8)))},
	{name: "P6/surviving-marks-ignore-the-floor", run: script(admit(named("high", 100)), cut, admit(named("survivor", 7)), retire(atCut),
		look("survivor"), admit(named("survivor", 7), named("survivor", 6), guard.Claim{Resource: "survivor", Token: 7, LeaseID: "b"}, named("survivor", 8)))},

	// Stores that several processes share: each call through the other handle.
	{name: "P1/replicas-share-marks", needs: replica, run: script(admit(claim(10, "a"), claim(20, "b"), claim(19, "b"), claim(20, "c"), claim(20, "b"), claim(30, "c")),
		look(resource, resource))},
	{name: "P1/replicas-share-the-floor", needs: replica, run: script(admit(named("old", 100)), retire(future), look("old", "old"),
		admit(named("old", 99), named("never seen", 100), named("old", 101)))},

	// Stores whose marks outlive the process.
	{name: "P3/restart-remembers-marks", needs: reopen, run: script(admit(named("r", 10), named("r", 20), named("other", 5)), restart, look("r"),
		admit(named("r", 19), named("other", 4), guard.Claim{Resource: "r", Token: 20, LeaseID: "b"}, named("r", 20), named("r", 21), named("other", 5)))},
	{name: "P3/restart-remembers-the-floor", needs: reopen, run: script(admit(named("old", 100)), retire(future), restart,
		admit(named("old", 99), named("old", 100), named("old", 101)))},

	{name: "P6/agrees-with-the-model", run: random},
}

// resource is the name that the cases with one resource use. All share it, so
// that a harness whose stores are not isolated fails.
const resource = "tenant_123:billing-close:2026-04"

// claim returns a claim on resource.
func claim(token guard.Token, lease string) guard.Claim {
	return guard.Claim{Resource: resource, Token: token, LeaseID: lease}
}

// named returns a claim on a resource of that name, under lease "a".
func named(name string, token guard.Token) guard.Claim {
	return guard.Claim{Resource: name, Token: token, LeaseID: "a"}
}

// boundaryTokens finds stores that compare tokens as text, as 32 bits or as
// floating point: each token, and then the one before it.
func boundaryTokens() (out []guard.Claim) {
	last := guard.Token(1)
	for _, t := range []guard.Token{
		1, 2, 9, 10, 99, 100, 1<<31 - 1, 1 << 31, 1<<32 - 1, 1 << 32, 1<<32 + 1, 1 << 40, 1<<40 + 1,
		1 << 53, 1<<53 + 1, 1<<53 + 2, guard.MaxToken - 1, guard.MaxToken,
	} {
		out = append(out, claim(t, "a"), claim(last, "a"))
		last = t
	}
	return out
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

// alikeResources gives each name the next lower token: one that is mistaken for an earlier
// one is refused as stale.
func alikeResources() (out []guard.Claim) {
	names := append([]string{
		strings.Repeat("y", 255), strings.Repeat("y", 256),
		strings.Repeat("y", guard.MaxResourceLen-1), strings.Repeat("y", guard.MaxResourceLen),
		strings.Repeat("語", guard.MaxResourceLen/3),
	}, alike...)
	for i, name := range names {
		out = append(out, named(name, guard.Token(len(names)-i)))
	}
	return out
}

// alikeLeases presents each lease, its neighbour in the list, which is the likeliest to be
// confused, and every pair of the few that fold into "a".
func alikeLeases() (out []guard.Claim) {
	for i, lease := range alike {
		t := guard.Token(i + 1)
		out = append(out, claim(t, lease), claim(t, alike[(i+1)%len(alike)]), claim(t, lease))
	}
	for i, lease := range alike[:5] {
		out = append(out, claim(guard.Token(1000+i), lease))
		for _, other := range alike[:5] {
			out = append(out, claim(guard.Token(1000+i), other))
		}
	}
	return out
}

// invalidClaims returns claims with one invalid field each; the other fields
// are those of c.
func invalidClaims(c guard.Claim) []guard.Claim {
	out := []guard.Claim{{}}
	for _, r := range []string{
		"",
		strings.Repeat("a", guard.MaxResourceLen+1),
		strings.Repeat("語", guard.MaxResourceLen/3) + "語", // too long in bytes, not in characters
		strings.Repeat("a", 1<<20),
		"a\x00", "\x00", "a\tb", "a\n", "a\r", "\x1b[31m", "a\x1f", "a\x7f", // C0 and DEL
		"a\u0080", "a\u0085", "\u009f", // C1
		"\xff", "a\xc3", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", // truncated, overlong, surrogate, too high
	} {
		out = append(out, guard.Claim{Resource: r, Token: c.Token, LeaseID: c.LeaseID})
	}
	for _, t := range []guard.Token{0, -1, math.MaxInt64, math.MinInt64, math.MinInt64 + 1, -1 << 32} {
		out = append(out, guard.Claim{Resource: c.Resource, Token: t, LeaseID: c.LeaseID})
	}
	for _, l := range []string{
		strings.Repeat("a", guard.MaxLeaseIDLen+1), strings.Repeat("語", 43), strings.Repeat("a", 1<<20),
		"\x00", "a\x00b", "a\n", "\x7f", "\u0085", "\xff", "a\xc3",
	} {
		out = append(out, guard.Claim{Resource: c.Resource, Token: c.Token, LeaseID: l})
	}
	return out
}
