package guard_test

import (
	"errors"
	"math"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
)

// decision is an implementation of Decide that may be wrong.
type decision func(guard.Rule, guard.Mark, guard.Claim) guard.Reason

func decide(r guard.Rule, m guard.Mark, c guard.Claim) guard.Reason {
	return guard.ReasonOf(guard.Decide(r, m, c))
}

// specified is the rule as sets, not as a sequence of comparisons: for each
// refusal the condition that DESIGN gives it, of which at most one may hold.
func specified(t *testing.T, r guard.Rule, m guard.Mark, c guard.Claim) guard.Reason {
	equal := c.Token == m.Token
	sameLease := c.LeaseID == m.LeaseID
	holds := map[guard.Reason]bool{
		guard.ReasonStale:    c.Token < m.Token || equal && m.Floor,
		guard.ReasonConflict: equal && !m.Floor && !sameLease,
		guard.ReasonSpent:    equal && !m.Floor && sameLease && r == guard.OncePerToken,
	}
	out := guard.ReasonNone
	for reason, h := range holds {
		if h {
			if out != guard.ReasonNone {
				t.Fatalf("the specification contradicts itself for %v, %+v, %+v", r, m, c)
			}
			out = reason
		}
	}
	return out
}

// disagreements compares f with the specification over every mark and claim of
// small tokens, the ends of the range, and three leases.
func disagreements(t *testing.T, f decision) (n int, example string) {
	tokens := []guard.Token{1, 2, 3, 4, 1<<53 + 1, guard.MaxToken - 1, guard.MaxToken}
	leases := []string{"", "a", "b", "A"}
	for _, rule := range []guard.Rule{guard.SameOrNewer, guard.OncePerToken} {
		for _, mt := range append([]guard.Token{0}, tokens...) {
			for _, ml := range leases {
				for _, floor := range []bool{false, true} {
					for _, ct := range tokens {
						for _, cl := range leases {
							m := guard.Mark{Token: mt, LeaseID: ml, Floor: floor}
							c := guard.Claim{Resource: "r", Token: ct, LeaseID: cl}
							if got, want := f(rule, m, c), specified(t, rule, m, c); got != want {
								n++
								example = rule.String() + ": got " + string(got) + ", want " + string(want)
							}
						}
					}
				}
			}
		}
	}
	return n, example
}

func TestDecideIsTheRule(t *testing.T) {
	if n, example := disagreements(t, decide); n != 0 {
		t.Errorf("%d disagreements, such as %s", n, example)
	}
}

// TestDecideControls: the table distinguishes the rule from every rule close to
// it.
func TestDecideControls(t *testing.T) {
	for name, wrong := range map[string]decision{
		"lower admitted": func(r guard.Rule, m guard.Mark, c guard.Claim) guard.Reason {
			if c.Token+1 == m.Token {
				return guard.ReasonNone
			}
			return decide(r, m, c)
		},
		"lease ignored": func(r guard.Rule, m guard.Mark, c guard.Claim) guard.Reason {
			c.LeaseID = m.LeaseID
			return decide(r, m, c)
		},
		"no lease equals every lease": func(r guard.Rule, m guard.Mark, c guard.Claim) guard.Reason {
			if c.LeaseID == "" {
				c.LeaseID = m.LeaseID
			}
			return decide(r, m, c)
		},
		"floor ignored": func(r guard.Rule, m guard.Mark, c guard.Claim) guard.Reason {
			m.Floor = false
			return decide(r, m, c)
		},
		"spent before conflict": func(r guard.Rule, m guard.Mark, c guard.Claim) guard.Reason {
			if r == guard.OncePerToken && c.Token == m.Token && !m.Floor {
				return guard.ReasonSpent
			}
			return decide(r, m, c)
		},
		"rules exchanged": func(r guard.Rule, m guard.Mark, c guard.Claim) guard.Reason {
			return decide(guard.SameOrNewer+guard.OncePerToken-r, m, c)
		},
		"leases compared below the mark": func(r guard.Rule, m guard.Mark, c guard.Claim) guard.Reason {
			if c.Token < m.Token && c.LeaseID != m.LeaseID {
				return guard.ReasonConflict
			}
			return decide(r, m, c)
		},
	} {
		if n, _ := disagreements(t, wrong); n == 0 {
			t.Errorf("%s: the table does not notice", name)
		}
	}
}

func TestDecideHasTheFacts(t *testing.T) {
	for _, c := range []struct {
		rule   guard.Rule
		mark   guard.Mark
		claim  guard.Claim
		reason guard.Reason
		err    error
	}{
		{guard.SameOrNewer, guard.Mark{Token: 11, LeaseID: "b"}, guard.Claim{Resource: "r", Token: 10, LeaseID: "a"}, guard.ReasonStale, guard.ErrStale},
		{guard.SameOrNewer, guard.Mark{Token: 11, Floor: true}, guard.Claim{Resource: "r", Token: 11}, guard.ReasonStale, guard.ErrStale},
		{guard.SameOrNewer, guard.Mark{Token: 11, LeaseID: "b"}, guard.Claim{Resource: "r", Token: 11, LeaseID: "a"}, guard.ReasonConflict, guard.ErrConflict},
		{guard.OncePerToken, guard.Mark{Token: 11, LeaseID: "b"}, guard.Claim{Resource: "r", Token: 11, LeaseID: "b"}, guard.ReasonSpent, guard.ErrSpent},
	} {
		err := guard.Decide(c.rule, c.mark, c.claim)
		var r *guard.RejectedError
		if !errors.As(err, &r) || !errors.Is(err, c.err) {
			t.Fatalf("Decide(%v, %+v, %+v) = %v; want %v", c.rule, c.mark, c.claim, err, c.err)
		}
		if *r != (guard.RejectedError{Reason: c.reason, Claim: c.claim, Mark: c.mark}) {
			t.Errorf("the facts are %+v", *r)
		}
	}
}

func TestDecideRefusesInvalidInput(t *testing.T) {
	for _, rule := range []guard.Rule{0, 3, 255} {
		if err := guard.Decide(rule, guard.Mark{}, guard.Claim{Resource: "r", Token: 1}); !errors.Is(err, guard.ErrInvalid) {
			t.Errorf("rule %d: %v; want ErrInvalid", rule, err)
		}
	}
	for _, tok := range []guard.Token{0, -1, math.MinInt64, math.MaxInt64} {
		for _, mark := range []guard.Mark{{}, {Token: 5}, {Token: 5, Floor: true}} {
			if err := guard.Decide(guard.SameOrNewer, mark, guard.Claim{Resource: "r", Token: tok}); !errors.Is(err, guard.ErrInvalid) {
				t.Errorf("token %d: %v; want ErrInvalid", int64(tok), err)
			}
		}
	}
}

func TestDecideAllocatesNothingWhenAdmitting(t *testing.T) {
	mark := guard.Mark{Token: 10, LeaseID: "a"}
	same := guard.Claim{Resource: "r", Token: 10, LeaseID: "a"}
	newer := guard.Claim{Resource: "r", Token: 11, LeaseID: "b"}
	if n := testing.AllocsPerRun(1000, func() {
		if guard.Decide(guard.SameOrNewer, mark, same) != nil || guard.Decide(guard.OncePerToken, mark, newer) != nil {
			panic("refused")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
