package guardtest

import (
	"context"
	"fmt"
	"math"
	"strings"

	"github.com/fencepost-go/fencepost/guard"
)

// invalidCases are about malformed claims.
var invalidCases = []testCase{
	{name: "P5/invalid-claim-is-refused", promise: P5, run: invalidIsRefused},
	{name: "P5/invalid-claim-changes-nothing", promise: P5, run: invalidChangesNothing},
	{name: "P5/invalid-resource-has-no-mark", promise: P5, run: invalidHasNoMark},
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

func invalidIsRefused(ctx context.Context, e *env) error {
	s := e.store()
	for _, c := range invalidClaims(claim(5, "a")) {
		if err := refused(ctx, s, guard.ReasonInvalid, c); err != nil {
			return err
		}
	}
	// With a mark, an invalid claim is invalid, not stale.
	if err := admitted(ctx, s, claim(10, "a")); err != nil {
		return err
	}
	for _, c := range invalidClaims(claim(5, "a")) {
		if err := refused(ctx, s, guard.ReasonInvalid, c); err != nil {
			return fmt.Errorf("with the mark at 10: %w", err)
		}
	}
	return nil
}

func invalidChangesNothing(ctx context.Context, e *env) error {
	s := e.store()
	try := func(c guard.Claim, want guard.Mark) error {
		if _, err := s.Admit(ctx, c); err == nil {
			return fmt.Errorf("Admit(%s) was admitted", show(c))
		}
		if err := hasMark(ctx, s, resource, want); err != nil {
			return fmt.Errorf("after Admit(%s): %w", show(c), err)
		}
		return nil
	}
	for _, c := range invalidClaims(claim(5, "a")) {
		if err := try(c, guard.Mark{}); err != nil {
			return err
		}
	}
	if err := admitted(ctx, s, claim(10, "a")); err != nil {
		return err
	}
	for _, c := range invalidClaims(claim(11, "b")) { // its token would raise
		if err := try(c, guard.Mark{Token: 10, LeaseID: "a"}); err != nil {
			return err
		}
	}
	return retires(ctx, s, future(), 1, 10)
}

func invalidHasNoMark(ctx context.Context, e *env) error {
	for _, r := range invalidResources {
		if got, err := e.store().Mark(ctx, r); guard.ReasonOf(err) != guard.ReasonInvalid {
			return fmt.Errorf("Mark(%s) = %s, %v; want an error that is guard.ErrInvalid", quote(r), showMark(got), err)
		}
	}
	return nil
}
