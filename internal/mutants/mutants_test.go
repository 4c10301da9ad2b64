package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const source = `package p

import (
	_ "embed"
	"runtime"
	"time"
)

//go:embed schema.sql
var schema string

// Clamp has a boundary that the tests do not look at.
func Clamp(a, top int) int {
	if a > top {
		return top
	}
	return a
}

func Same(a int) bool {
	b := a
	b += 0
	return a == b
}

func Both(a, b bool) bool { return a && b }

func Yield() { runtime.Gosched() }

func Unused() int { return 7 }

func Wait(done chan bool) {
	go func() { done <- true }()
	select {
	case <-done:
	case <-time.After(time.Hour):
	}
}

// Read is a function at package level; no test runs Schema.
var Read = func() string { return schema }

func Schema() string { return Read() }
`

const tests = `package p

import (
	"strings"
	"testing"
)

func TestClamp(t *testing.T) {
	if Clamp(1, 9) != 1 || Clamp(10, 9) != 9 {
		t.Fail()
	}
}

func TestSame(t *testing.T) {
	if !Same(3) {
		t.Fail()
	}
}

func TestBoth(t *testing.T) {
	if Both(true, false) {
		t.Fail()
	}
}

func TestSchema(t *testing.T) {
	if !strings.Contains(Read(), "a = 1") {
		t.Fatal("ERROR: syntax error at or near (SQLSTATE 42601)")
	}
	if !strings.Contains(Read(), "b > 2") {
		t.Fail()
	}
}
`

// module makes a module of one package, and keeps the command's cache out of
// the user's directory.
func module(t *testing.T, more map[string]string) string {
	t.Helper()
	root := t.TempDir()
	files := map[string]string{
		"go.mod":       "module example.com/m\n\ngo 1.26\n",
		"p/p.go":       source,
		"p/p_test.go":  tests,
		"p/schema.sql": "SELECT a = 1\n  AND b > 2; -- a > 3\n",
	}
	for name, text := range more {
		files[name] = text
	}
	for name, text := range files {
		name = filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cache := os.Getenv("GOCACHE")
	if cache == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			t.Fatal(err)
		}
		cache = filepath.Join(dir, "go-build")
	}
	t.Setenv("GOCACHE", cache)
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	return root
}

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

// TestVerdicts: the command can return each of its verdicts.
func TestVerdicts(t *testing.T) {
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

// TestTimeout: a mutant that waits forever is killed, and reported as such.
func TestTimeout(t *testing.T) {
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

// TestSeed: the same seed gives the same mutants in the same order, another
// seed gives another order.
func TestSeed(t *testing.T) {
	root := module(t, nil)
	list := func(seed string) []string {
		var out bytes.Buffer
		if code := command(t.Context(), root, []string{"-seed", seed, "-list", "./p"}, &out, &out); code != 0 {
			t.Fatalf("exit %d: %s", code, &out)
		}
		return strings.Split(out.String(), "\n")
	}
	one, two := list("1"), list("2")
	if !slices.Equal(one, list("1")) || slices.Equal(one, two) || len(one) != len(two) {
		t.Errorf("%q\n%q", one, two)
	}
}

// TestMinimum: -min sets how many must be killed, and can fail.
func TestMinimum(t *testing.T) {
	root := module(t, nil)
	survivor := only(t, root, "comparison boundary", "- if a > top {\n+ if a >= top {")
	for minimum, want := range map[string]int{"0": 0, "1": 1} {
		var out bytes.Buffer
		if code := command(t.Context(), root, []string{"-min", minimum, "-only", survivor, "./p"}, &out, &out); code != want {
			t.Errorf("-min %s: exit %d: %s", minimum, code, &out)
		}
	}
}

// TestBrokenTestsAreLeftOut: a test that fails anyway kills nothing.
func TestBrokenTestsAreLeftOut(t *testing.T) {
	root := module(t, map[string]string{"p/broken_test.go": "package p\n\nimport \"testing\"\n\nfunc TestBroken(t *testing.T) { Clamp(1, 2); t.Fail() }\n"})
	survivor := only(t, root, "comparison boundary", "- if a > top {\n+ if a >= top {")
	var out bytes.Buffer
	if code := command(t.Context(), root, []string{"-only", survivor, "./p"}, &out, &out); code != 1 || !strings.Contains(out.String(), "LEFT OUT: TestBroken of ./p") {
		t.Errorf("exit %d: %s", code, &out)
	}
}

// TestMoreTests: tests of other packages notice what the package's own do not.
func TestMoreTests(t *testing.T) {
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

func TestUsage(t *testing.T) {
	root := module(t, map[string]string{"bad/bad.go": "package bad\n", "bad/testdata/equivalent_mutants.txt": "in F\n- x\n"})
	for _, args := range [][]string{{}, {"./p", "./p"}, {"./none"}, {"./..."}, {"-only", "x", "./p"}, {"-only", "99999", "./p"}, {"./bad"}} {
		var out bytes.Buffer
		if code := command(t.Context(), root, args, &out, &out); code != 2 {
			t.Errorf("%q: exit %d: %s", args, code, &out)
		}
	}
}
