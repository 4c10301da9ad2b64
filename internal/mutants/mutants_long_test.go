//go:build long

package main

import (
	"bytes"
	"strings"
	"testing"
)

// only returns the index of the one mutant with this operator and diff.
func only(t *testing.T, root, operator, diff string) string {
	t.Helper()
	var out bytes.Buffer
	if code := command(t.Context(), root, []string{"-list", "./p"}, &out, &out); code != 0 {
		t.Fatalf("exit %d: %s", code, &out)
	}
	before, _, ok := strings.Cut(out.String(), operator+"\n"+indent(diff)+"\n")
	if !ok {
		t.Fatalf("no mutant %q\n%s\nin\n%s", operator, diff, &out)
	}
	lines := strings.Split(before, "\n")
	index, _, _ := strings.Cut(lines[len(lines)-1], " ")
	return index
}

// TestLongVerdicts: the command can return each of its verdicts.
func TestLongVerdicts(t *testing.T) {
	root := module(t, map[string]string{"p/testdata/equivalent_mutants.txt": `# a comment
in Same
- b += 0
because adding nothing changes nothing
`})
	for _, c := range []struct {
		operator, diff string
		code           int
		says           string
	}{
		{"negate condition", "- if a > top {\n+ if !(a > top) {", 0, "1 mutants of ./p, 1 killed, 0 survived, 0 timed out"},
		{"comparison boundary", "- if a > top {\n+ if a >= top {", 1, "SURVIVED"},
		{"comparison boundary", "- if a > top {\n+ if a >= top {", 1, "1 tests that run it pass"},
		{"other constant", "- func Unused() int { return 7 }\n+ func Unused() int { return 8 }", 1, "no test runs this line"},
		{"drop operand", "- func Both(a, b bool) bool { return a && b }\n+ func Both(a, b bool) bool { return a }", 0, "1 killed"},
		{"drop statement", "- func Yield() { runtime.Gosched() }\n+ func Yield() {  }", 0, "0 mutants of ./p, 0 killed, 0 survived, 0 timed out (counted as killed)"},
		{"drop statement", "- func Yield() { runtime.Gosched() }\n+ func Yield() {  }", 0, "not counted: 1 do not compile"},
		{"drop assignment", "- b += 0", 0, "not counted: 0 do not compile, 1 are known to be equivalent\n  equivalent in Same: adding nothing changes nothing"},
		{"return zero", "- return a\n+ return 0", 0, "1 killed"},
		{"SQL: > -> >=", "- AND b > 2; -- a > 3\n+ AND b >= 2; -- a > 3", 0, "1 killed"},
		{"SQL: = -> <>", "- SELECT a = 1\n+ SELECT a <> 1", 0, "0 mutants of ./p, 0 killed, 0 survived, 0 timed out (counted as killed)"},
	} {
		var out bytes.Buffer
		index := only(t, root, c.operator, c.diff)
		if code := command(t.Context(), root, []string{"-only", index, "./p"}, &out, &out); code != c.code || !strings.Contains(out.String(), c.says) {
			t.Errorf("%s: exit %d, not %d with %q: %s", c.operator, code, c.code, c.says, &out)
		}
	}
}

// TestLongTimeout: a mutant that waits forever is killed, and reported as such.
func TestLongTimeout(t *testing.T) {
	root := module(t, map[string]string{"p/p_test.go": "package p\n\nimport \"testing\"\n\nfunc TestWait(t *testing.T) { Wait(make(chan bool)) }\n"})
	index := only(t, root, "drop statement", "- go func() { done <- true }()\n+ go func() {  }()")
	limits := least
	least = 0
	t.Cleanup(func() { least = limits })
	var out bytes.Buffer
	if code := command(t.Context(), root, []string{"-only", index, "./p"}, &out, &out); code != 0 || !strings.Contains(out.String(), "1 killed, 0 survived, 1 timed out") {
		t.Errorf("exit %d: %s", code, &out)
	}
}

// TestLongMinimum: -min sets how many must be killed, and can fail.
func TestLongMinimum(t *testing.T) {
	root := module(t, nil)
	survivor := only(t, root, "comparison boundary", "- if a > top {\n+ if a >= top {")
	for minimum, want := range map[string]int{"0": 0, "1": 1} {
		var out bytes.Buffer
		if code := command(t.Context(), root, []string{"-min", minimum, "-only", survivor, "./p"}, &out, &out); code != want {
			t.Errorf("-min %s: exit %d: %s", minimum, code, &out)
		}
	}
}

// TestLongBrokenTestsAreLeftOut: a test that fails anyway kills nothing.
func TestLongBrokenTestsAreLeftOut(t *testing.T) {
	root := module(t, map[string]string{"p/broken_test.go": "package p\n\nimport \"testing\"\n\nfunc TestBroken(t *testing.T) { Clamp(1, 2); t.Fail() }\n"})
	survivor := only(t, root, "comparison boundary", "- if a > top {\n+ if a >= top {")
	var out bytes.Buffer
	if code := command(t.Context(), root, []string{"-only", survivor, "./p"}, &out, &out); code != 1 || !strings.Contains(out.String(), "LEFT OUT: TestBroken of ./p") {
		t.Errorf("exit %d: %s", code, &out)
	}
}

// TestLongMoreTests: tests of other packages notice what the package's own do not.
func TestLongMoreTests(t *testing.T) {
	root := module(t, map[string]string{
		"q/q.go":      "package q\n",
		"q/q_test.go": "package q\n\nimport (\n\t\"testing\"\n\n\t\"example.com/m/p\"\n)\n\nfunc TestUnused(t *testing.T) {\n\tif p.Unused() != 7 {\n\t\tt.Fail()\n\t}\n}\n",
	})
	index := only(t, root, "other constant", "- func Unused() int { return 7 }\n+ func Unused() int { return 8 }")
	for extra, want := range map[string]int{"": 1, "./q": 0} {
		var out bytes.Buffer
		if code := command(t.Context(), root, []string{"-tests", extra, "-only", index, "./p"}, &out, &out); code != want {
			t.Errorf("-tests %q: exit %d: %s", extra, code, &out)
		}
	}
}
