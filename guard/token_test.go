package guard_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"regexp"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
)

func TestParseToken(t *testing.T) {
	accepted := map[string]guard.Token{
		"1": 1, "9": 9, "10": 10, "11": 11, "1099511627776": 1 << 40, "9007199254740993": 1<<53 + 1,
		"999999999999999999": 999999999999999999, "1000000000000000000": 1000000000000000000,
		"9223372036854775806": guard.MaxToken,
	}
	for s, want := range accepted {
		if got, err := guard.ParseToken(s); err != nil || got != want {
			t.Errorf("ParseToken(%q) = %d, %v; want %d", s, got, err, want)
		}
	}
	refused := []string{
		"", "0", "00", "007", "-1", "+5", "-0", "1e3", "0x10", "1_000", "1,000", "1.0", ".1", "1.",
		" 1", "1 ", "1\n", "\t1", "1\x00", "\x001", "1\r\n", "1,2", "1;2", `"1"`, "NaN", "Inf", "token",
		"9223372036854775807", "9223372036854775808", "9999999999999999999", "18446744073709551617",
		"10000000000000000000", "99999999999999999999", "00000000000000000001",
		"１", "١٢", "१", "1２", "²", "\xff", "1\xff", "/", ":", "1/", "1:",
		strings.Repeat("1", 1<<20), strings.Repeat("0", 1<<20),
	}
	for _, s := range refused {
		got, err := guard.ParseToken(s)
		if got != guard.NoToken || !errors.Is(err, guard.ErrInvalid) {
			t.Errorf("ParseToken(%.40q) = %d, %v; want no token and ErrInvalid", s, got, err)
		}
		var invalid *guard.InvalidError
		if !errors.As(err, &invalid) || invalid.Field != "token" {
			t.Errorf("ParseToken(%.40q): %v does not name the field", s, err)
		}
	}
}

var spelling = regexp.MustCompile(`^[1-9][0-9]{0,18}$`)

// FuzzParseToken compares ParseToken with the expression in its documentation
// and with numbers that cannot overflow.
func FuzzParseToken(f *testing.F) {
	for _, s := range []string{"1", "0", "007", "+5", "9223372036854775806", "9223372036854775807", "99999999999999999999", "1\n", "１"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, isNumber := new(big.Int).SetString(s, 10)
		want := spelling.MatchString(s) && isNumber && n.Cmp(big.NewInt(int64(guard.MaxToken))) <= 0
		got, err := guard.ParseToken(s)
		switch {
		case (err == nil) != want:
			t.Fatalf("ParseToken(%q) = %d, %v; want accepted: %t", s, got, err, want)
		case err != nil && (got != guard.NoToken || !errors.Is(err, guard.ErrInvalid)):
			t.Fatalf("ParseToken(%q) = %d, %v; want no token and ErrInvalid", s, got, err)
		case err == nil && (got.String() != s || int64(got) != n.Int64()):
			t.Fatalf("ParseToken(%q) = %d", s, got)
		}
	})
}

func TestTokenRange(t *testing.T) {
	for _, tok := range []guard.Token{1, 2, 1 << 40, guard.MaxToken} {
		if !tok.Valid() || tok.Validate() != nil {
			t.Errorf("%d is refused: %v", tok, tok.Validate())
		}
	}
	for _, tok := range []guard.Token{guard.NoToken, -1, math.MinInt64, math.MaxInt64} {
		if err := tok.Validate(); tok.Valid() || !errors.Is(err, guard.ErrInvalid) {
			t.Errorf("Validate(%d) = %v; want ErrInvalid", int64(tok), err)
		}
	}
	if next := guard.MaxToken + 1; next < guard.MaxToken {
		t.Error("the token after the highest overflows")
	}
}

func TestTokenText(t *testing.T) {
	for _, tok := range []guard.Token{guard.NoToken, 1, 1<<53 + 1, guard.MaxToken} {
		text, err := tok.MarshalText()
		if err != nil || string(text) != fmt.Sprint(int64(tok)) {
			t.Errorf("MarshalText(%d) = %q, %v", tok, text, err)
		}
		back := guard.Token(-7)
		if err := back.UnmarshalText(text); err != nil || back != tok {
			t.Errorf("UnmarshalText(%q) = %d, %v", text, back, err)
		}
	}
	for _, tok := range []guard.Token{-1, math.MinInt64, math.MaxInt64} {
		if text, err := tok.MarshalText(); !errors.Is(err, guard.ErrInvalid) {
			t.Errorf("MarshalText(%d) = %q, %v; want ErrInvalid", int64(tok), text, err)
		}
	}
	for _, s := range []string{"", "00", "-1", "007", " 1", "9223372036854775807"} {
		tok := guard.Token(5)
		if err := tok.UnmarshalText([]byte(s)); !errors.Is(err, guard.ErrInvalid) || tok != 5 {
			t.Errorf("UnmarshalText(%q) = %d, %v; want ErrInvalid and the token untouched", s, tok, err)
		}
	}
}

// TestTokenJSON: a number would lose digits in readers that hold numbers as
// floating point, so only a string is a token.
func TestTokenJSON(t *testing.T) {
	in := guard.Claim{Resource: "r", Token: 1<<53 + 1, LeaseID: "a"}
	b, err := json.Marshal(in)
	if want := `{"resource":"r","token":"9007199254740993","leaseId":"a"}`; err != nil || string(b) != want {
		t.Errorf("Marshal = %s, %v; want %s", b, err, want)
	}
	var out guard.Claim
	if err := json.Unmarshal(b, &out); err != nil || out != in {
		t.Errorf("Unmarshal = %+v, %v; want %+v", out, err, in)
	}
	b, err = json.Marshal(guard.Mark{Token: 7, Floor: true})
	if want := `{"token":"7","floor":true}`; err != nil || string(b) != want {
		t.Errorf("Marshal = %s, %v; want %s", b, err, want)
	}
	var mark guard.Mark
	if err := json.Unmarshal([]byte(`{"token":"0"}`), &mark); err != nil || mark != (guard.Mark{}) {
		t.Errorf(`the token "0" gave %+v, %v; want none`, mark, err)
	}
	for _, s := range []string{`5`, `5.0`, `true`, `["5"]`, `{}`, `"05"`, `"-1"`, `"5 "`, `""`} {
		var c guard.Claim
		if err := json.Unmarshal([]byte(`{"resource":"r","token":`+s+`}`), &c); err == nil || c.Token != guard.NoToken {
			t.Errorf("the token %s gave %d, %v; want an error and no token", s, c.Token, err)
		}
	}
	if b, err := json.Marshal(guard.Claim{Resource: "r", Token: -1}); !errors.Is(err, guard.ErrInvalid) {
		t.Errorf("Marshal of an invalid token = %s, %v; want ErrInvalid", b, err)
	}
}

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
