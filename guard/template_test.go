package guard_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/longtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
)

// vectors is testdata/templates.json, which is meant for writers in other
// languages as well.
type vectors struct {
	Names []struct {
		Template string
		Values   []string
		Name     string
	}
	RefusedValues []struct {
		Template string
		Values   []string
		Variable string
	}
	NotMatched []struct {
		Template string
		Name     string
	}
	MalformedTemplates []string
}

func readVectors(t *testing.T) (v vectors) {
	t.Helper()
	raw, err := os.ReadFile("testdata/templates.json")
	testkit.Must(t, err)
	testkit.Must(t, json.Unmarshal(raw, &v))
	if len(v.Names) < 20 || len(v.RefusedValues) < 20 || len(v.NotMatched) < 10 || len(v.MalformedTemplates) < 20 {
		t.Fatal("testdata/templates.json is not complete")
	}
	return v
}

func TestP9TemplateVectors(t *testing.T) {
	v := readVectors(t)
	for _, c := range v.Names {
		tmpl, err := guard.NewTemplate(c.Template)
		if err != nil {
			t.Errorf("NewTemplate(%q): %v", c.Template, err)
			continue
		}
		if got, err := tmpl.Name(c.Values...); err != nil || got != c.Name {
			t.Errorf("%s: Name(%q) = %q, %v; want %q", c.Template, c.Values, got, err, c.Name)
		}
		if got, err := tmpl.Match(c.Name); err != nil || !slices.Equal(got, c.Values) {
			t.Errorf("%s: Match(%q) = %q, %v; want %q", c.Template, c.Name, got, err, c.Values)
		}
	}
	for _, c := range v.RefusedValues {
		name, err := guard.Must(guard.NewTemplate(c.Template)).Name(c.Values...)
		var invalid *guard.InvalidError
		if name != "" || !errors.As(err, &invalid) || invalid.Field != "template variable "+c.Variable {
			t.Errorf("%s: Name(%.60q) = %.40q, %v; want an InvalidError for the variable %s", c.Template, c.Values, name, err, c.Variable)
		}
	}
	for _, c := range v.NotMatched {
		values, err := guard.Must(guard.NewTemplate(c.Template)).Match(c.Name)
		var invalid *guard.InvalidError
		if values != nil || !errors.As(err, &invalid) || invalid.Field != "resource" {
			t.Errorf("%s: Match(%q) = %q, %v; want an InvalidError for the resource", c.Template, c.Name, values, err)
		}
	}
	for _, text := range v.MalformedTemplates {
		tmpl, err := guard.NewTemplate(text)
		var invalid *guard.InvalidError
		if tmpl != nil || !errors.As(err, &invalid) || invalid.Field != "template" {
			t.Errorf("NewTemplate(%.40q) = %v, %v; want an InvalidError for the template", text, tmpl, err)
		}
	}
	for _, text := range []string{"\xff", "{a}:\xc3"} { // JSON has no such text
		if _, err := guard.NewTemplate(text); !errors.Is(err, guard.ErrInvalid) {
			t.Errorf("NewTemplate(%q): %v; want ErrInvalid", text, err)
		}
	}
}

func TestTemplateParts(t *testing.T) {
	tmpl := guard.Must(guard.NewTemplate("{tenant}:invoice:{id:int}:{account:uuid}"))
	want := []guard.TemplatePart{{Variable: "tenant"}, {Literal: "invoice"}, {Variable: "id", Type: guard.TypeInt}, {Variable: "account", Type: guard.TypeUUID}}
	if got := tmpl.Parts(); !slices.Equal(got, want) {
		t.Errorf("Parts() = %+v; want %+v", got, want)
	}
	if got := tmpl.Variables(); !slices.Equal(got, []string{"tenant", "id", "account"}) {
		t.Errorf("Variables() = %q", got)
	}
	tmpl.Parts()[1].Literal, tmpl.Variables()[0] = "other", "other"
	if name, err := tmpl.Name("a", "1", "67e55044-10b1-426f-9247-bb680e5fe0c8"); err != nil || !strings.HasPrefix(name, "a:invoice:1:") {
		t.Errorf("a caller changed the template: %q, %v", name, err)
	}
	if got := tmpl.String(); got != "{tenant}:invoice:{id:int}:{account:uuid}" {
		t.Errorf("String() = %q", got)
	}
	for _, values := range [][]string{nil, {"a"}, {"a", "1", "b", "c"}} {
		if name, err := tmpl.Name(values...); name != "" || !errors.Is(err, guard.ErrInvalid) || !strings.Contains(err.Error(), tmpl.String()) {
			t.Errorf("Name(%q) = %q, %v; want ErrInvalid that names the template", values, name, err)
		}
	}
}

func TestTemplateCheckVariables(t *testing.T) {
	tmpl := guard.Must(guard.NewTemplate("{tenant}:billing-close:{period}"))
	for _, bound := range [][]string{{"tenant", "period"}, {"period", "tenant"}} {
		if err := tmpl.CheckVariables(bound...); err != nil {
			t.Errorf("CheckVariables(%q): %v", bound, err)
		}
	}
	for _, c := range []struct {
		bound         []string
		value, substr string
	}{
		{[]string{"tenant"}, "period", "is not bound"},
		{nil, "tenant", "is not bound"},
		{[]string{"tenant", "period", "region"}, "region", "is not in template {tenant}:billing-close:{period}"},
		{[]string{"tenant", "period", "tenant"}, "tenant", "is bound twice"},
		{[]string{"Tenant", "period"}, "tenant", "is not bound"},
	} {
		err := tmpl.CheckVariables(c.bound...)
		var invalid *guard.InvalidError
		if !errors.As(err, &invalid) || invalid.Value != c.value || !strings.Contains(invalid.Problem, c.substr) {
			t.Errorf("CheckVariables(%q) = %v; want the variable %s that %s", c.bound, err, c.value, c.substr)
		}
	}
}

func TestP9ClaimForAnotherResource(t *testing.T) {
	claim := guard.Claim{Resource: "acme:payout:p", Token: 2000}
	testkit.Check(t, claim.CheckResource("acme:payout:p"))
	for _, guarded := range []string{"acme:payouts:p", "Acme:payout:p", "acme:payout:p ", ""} {
		err := claim.CheckResource(guarded)
		var misdirected *guard.MisdirectedError
		if !errors.As(err, &misdirected) || misdirected.Claimed != claim.Resource || misdirected.Guarded != guarded {
			t.Errorf("CheckResource(%q) = %v; want a MisdirectedError with both names", guarded, err)
			continue
		}
		if !errors.Is(err, guard.ErrMisdirected) || !errors.Is(err, guard.ErrInvalid) || guard.ReasonOf(err) != guard.ReasonMisdirected {
			t.Errorf("CheckResource(%q): reason %q", guarded, guard.ReasonOf(err))
		}
		if s := err.Error(); !strings.Contains(s, `"acme:payout:p"`) || !strings.Contains(s, fmt.Sprintf("%q", guarded)) {
			t.Errorf("the message does not name both resources: %s", s)
		}
	}
}

func TestMustPanics(t *testing.T) {
	defer func() {
		if err, _ := recover().(error); !errors.Is(err, guard.ErrInvalid) {
			t.Errorf("Must panicked with %v; want the error itself", err)
		}
	}()
	guard.Must(guard.NewTemplate("{"))
}

// templateAlphabet has what could be mistaken for the syntax of a name, and
// characters of every length in UTF-8.
var templateAlphabet = []string{"a", "b", ":", "%", "%3A", "%25", "%3a", "{", "}", "2", "5", "3A", "é", "日", "😀", " "}

func randomValue(rng *rand.Rand) string {
	var b strings.Builder
	for range 1 + rng.IntN(4) {
		b.WriteString(templateAlphabet[rng.IntN(len(templateAlphabet))])
	}
	return b.String()
}

// TestP9TemplateIsInjective names random lists of values, a million in the long form, and
// then fewer with joins that omit one half of the escaping.
func TestP9TemplateIsInjective(t *testing.T) {
	tmpl := guard.Must(guard.NewTemplate("{a}:b:{c}"))
	naive := func(v ...string) (string, error) { return v[0] + ":b:" + v[1], nil }
	half := func(v ...string) (string, error) {
		return strings.ReplaceAll(v[0], ":", "%3A") + ":b:" + strings.ReplaceAll(v[1], ":", "%3A"), nil
	}
	count := func(name func(...string) (string, error), lists int) (collisions int) {
		rng := rand.New(rand.NewPCG(7, 11))
		seen := make(map[string][2]string, lists)
		for range lists {
			v := [2]string{randomValue(rng), randomValue(rng)}
			got, err := name(v[0], v[1])
			if err != nil {
				t.Fatalf("Name(%q): %v", v, err)
			}
			if other, ok := seen[got]; ok && other != v {
				collisions++
			}
			seen[got] = v
		}
		return collisions
	}
	if n := count(tmpl.Name, longtest.ByLength(200_000, 1_000_000)); n != 0 {
		t.Errorf("%d collisions; want none", n)
	}
	if n := count(naive, 100_000); n == 0 {
		t.Error("control: a join without escapes does not collide")
	}
	if n := count(half, 100_000); n == 0 {
		t.Error("control: a join that escapes only the separator does not collide")
	}
}

func FuzzTemplate(f *testing.F) {
	f.Add("{tenant}:billing-close:{period}", "tenant_123", "2026-04")
	f.Add("{a}:{b:int}", "a:b", "07")
	f.Add("x:{a}:{b:uuid}", "%", "67e55044-10b1-426f-9247-bb680e5fe0c8")
	f.Add("{a}", "\xff", "")
	f.Fuzz(func(t *testing.T, text, a, b string) {
		tmpl, err := guard.NewTemplate(text)
		if err != nil {
			if !errors.Is(err, guard.ErrInvalid) {
				t.Fatalf("NewTemplate(%q): %v", text, err)
			}
			return
		}
		values := []string{a, b}
		if n := len(tmpl.Variables()); n < 2 {
			values = values[:n]
		}
		name, err := tmpl.Name(values...)
		if err != nil {
			if name != "" || !errors.Is(err, guard.ErrInvalid) {
				t.Fatalf("%s: Name(%q) = %q, %v", text, values, name, err)
			}
		} else {
			if err := guard.ValidateResource(name); err != nil {
				t.Fatalf("%s: Name(%q) = %q: %v", text, values, name, err)
			}
			if back, err := tmpl.Match(name); err != nil || !slices.Equal(back, values) {
				t.Fatalf("%s: Name(%q) = %q, which matches as %q, %v", text, values, name, back, err)
			}
			var components []string
			next := 0
			for _, p := range tmpl.Parts() {
				if p.Variable != "" {
					components = append(components, values[next])
					next++
				} else {
					components = append(components, p.Literal)
				}
			}
			if joined, err := guard.JoinResource(components...); err != nil || joined != name {
				t.Fatalf("%s: Name(%q) = %q; JoinResource gives %q, %v", text, values, name, joined, err)
			}
		}
		if back, err := tmpl.Match(a); err == nil { // whatever matches is the name of its values
			if again, err := tmpl.Name(back...); err != nil || again != a {
				t.Fatalf("%s: Match(%q) = %q, which has the name %q, %v", text, a, back, again, err)
			}
		}
	})
}

func TestJoinResource(t *testing.T) {
	for _, c := range []struct {
		want       string
		components []string
	}{
		{"tenant_123:billing-close:2026-04", []string{"tenant_123", "billing-close", "2026-04"}},
		{"a", []string{"a"}},
		{"a%3Ab", []string{"a:b"}},
		{"a%253Ab", []string{"a%3Ab"}},
		{"%25", []string{"%"}},
		{"%3A:%3A", []string{":", ":"}},
		{"日本:a b", []string{"日本", "a b"}},
	} {
		if got, err := guard.JoinResource(c.components...); err != nil || got != c.want {
			t.Errorf("JoinResource(%q) = %q, %v; want %q", c.components, got, err, c.want)
		}
	}
	for _, components := range [][]string{
		nil, {""}, {"a", ""}, {"", "a"}, {"a", "", "b"},
		{"a\x00"}, {"a\n", "b"}, {"\xff"}, {"\xc3", "\xa9"}, {"é"[:1] + "%"},
		{strings.Repeat("a", 513)}, {strings.Repeat("a", 256), strings.Repeat("b", 256)}, {strings.Repeat(":", 171)},
	} {
		if got, err := guard.JoinResource(components...); got != "" || !errors.Is(err, guard.ErrInvalid) {
			t.Errorf("JoinResource(%.60q) = %.40q, %v; want no name and ErrInvalid", components, got, err)
		}
	}
	// The longest names that fit.
	for _, components := range [][]string{{strings.Repeat("a", 512)}, {strings.Repeat("a", 256), strings.Repeat("b", 255)}, {strings.Repeat(":", 170)}} {
		if _, err := guard.JoinResource(components...); err != nil {
			t.Errorf("JoinResource(%.60q): %v", components, err)
		}
	}
}

// tuples returns all lists of one to three of the words.
func tuples(words []string) [][]string {
	var out [][]string
	for _, a := range words {
		out = append(out, []string{a})
		for _, b := range words {
			out = append(out, []string{a, b})
			for _, c := range words {
				out = append(out, []string{a, b, c})
			}
		}
	}
	return out
}

// collisions counts the pairs of lists that join to one name.
func collisions(join func(...string) (string, error), lists [][]string) (n int, example [2][]string) {
	seen := map[string][]string{}
	for _, l := range lists {
		name, err := join(l...)
		if err != nil {
			continue
		}
		if other, ok := seen[name]; ok {
			n++
			example = [2][]string{other, l}
		}
		seen[name] = l
	}
	return n, example
}

func TestJoinResourceIsInjective(t *testing.T) {
	lists := tuples([]string{"a", "b", ":", "%", "a:", ":a", "a:b", "%3A", "%25", "%253A", "a%3Ab", "%3a", "3A", "25", "::"})
	if n, example := collisions(guard.JoinResource, lists); n != 0 {
		t.Errorf("%d collisions, such as %q", n, example)
	}
	// The control: the same lists collide when they are only concatenated.
	naive := func(c ...string) (string, error) { return strings.Join(c, ":"), nil }
	if n, _ := collisions(naive, lists); n == 0 {
		t.Error("the lists do not even tell a plain strings.Join")
	}
	// They also collide when the separator is escaped but the escape character
	// is not.
	half := func(c ...string) (string, error) {
		for i := range c {
			c = slices.Clone(c)
			c[i] = strings.ReplaceAll(c[i], ":", "%3A")
		}
		return strings.Join(c, ":"), nil
	}
	if n, _ := collisions(half, lists); n == 0 {
		t.Error("the lists do not tell a join that leaves % alone")
	}
}

// FuzzJoinResource: whatever was joined can be split again, so the join is
// injective.
func FuzzJoinResource(f *testing.F) {
	f.Add("a", "b", "c")
	f.Add("a:b", "%3A", "%")
	f.Add("", "é", "\xff")
	f.Fuzz(func(t *testing.T, a, b, c string) {
		for _, in := range [][]string{{a}, {a, b}, {a, b, c}} {
			name, err := guard.JoinResource(in...)
			if err != nil {
				if name != "" || !errors.Is(err, guard.ErrInvalid) {
					t.Fatalf("JoinResource(%q) = %q, %v", in, name, err)
				}
				continue
			}
			if err := guard.ValidateResource(name); err != nil {
				t.Fatalf("JoinResource(%q) = %q: %v", in, name, err)
			}
			out := strings.Split(name, ":")
			for i := range out {
				out[i] = strings.ReplaceAll(strings.ReplaceAll(out[i], "%3A", ":"), "%25", "%")
			}
			if !slices.Equal(in, out) {
				t.Fatalf("JoinResource(%q) = %q, which comes apart as %q", in, name, out)
			}
		}
	})
}
