package guard_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
)

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
