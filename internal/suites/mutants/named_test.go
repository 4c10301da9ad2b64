package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestEditsApply: every mistake's text is in the sources exactly once, the test that
// must catch it exists, and the names are unique.
func TestEditsApply(t *testing.T) {
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, m := range mistakes {
		if names[m.name] || m.wrong == "" {
			t.Errorf("%q is there twice, or does not say what is wrong", m.name)
		}
		names[m.name] = true
		if _, err := m.changed(root); err != nil {
			t.Error(err)
		}
		if text := testText(t, filepath.Join(root, m.by.pkg)); !strings.Contains(text, "\nfunc "+strings.Trim(m.by.tests, "^$")+"(") {
			t.Errorf("mistake %q in internal/suites/mutants/mistakes.go: %s has no test %s", m.name, m.by.pkg, m.by.tests)
		}
	}
	if len(mistakes) < 15 {
		t.Errorf("%d mistakes", len(mistakes))
	}
}

// testText returns the text of a package's tests.
func testText(t *testing.T, dir string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(text)
	}
	return b.String()
}

// module is a module of one package.
func module(t *testing.T) (root string) {
	t.Helper()
	root = t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module example.com/m\n\ngo 1.26\n",
		"p/p.go": `package p

func Sum(a, b int) int { return a + b }
`,
		"p/p_test.go": `package p

import "testing"

func TestSum(t *testing.T) {
	if Sum(1, 2) != 3 {
		t.Fail()
	}
}

var runs int

func TestFirst(t *testing.T) {
	if runs++; runs == 1 && Sum(1, 2) != 3 {
		t.Fail()
	}
}
`,
	} {
		name = filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// TestHunt: the command can return each of its verdicts.
func TestHunt(t *testing.T) {
	root := module(t)
	one := func(old, new, tests string) mistake {
		return mistake{name: "it", wrong: "it", edits: []edit{{"p/p.go", old, new}}, by: unitTest("p", tests)}
	}
	often := func(m mistake) mistake {
		m.by.times = 3
		return m
	}
	for _, c := range []struct {
		m    mistake
		code int
		says string
	}{
		{one("a + b", "a - b", "^TestSum$"), 0, "unit test TestSum (p)"},
		{often(one("a + b", "a - b", "^TestSum$")), 0, "unit test TestSum (p), 3 times of 3"},
		{often(one("a + b", "a - b", "^TestFirst$")), 1, "it was caught 1 times of 3"},
		{one("a + b", "b + a", "^TestSum$"), 1, "NOTHING: it survived unit test TestSum (p)"},
		{one("a + b", "a +", "^TestSum$"), 2, "does not compile"},
		{one("a * b", "a - b", "^TestSum$"), 2, "replaces 0 times, not once"},
		{one("int", "int64", "^TestSum$"), 2, "times, not once"},
		{one("a + b", "a - b", "^TestNothing$"), 1, "NOTHING"},
	} {
		var out bytes.Buffer
		if code := tryAll(t.Context(), root, []mistake{c.m}, &out); code != c.code || !strings.Contains(out.String(), c.says) {
			t.Errorf("%s -> %s: exit %d, %s", c.m.edits[0].old, c.m.edits[0].new, code, &out)
		}
	}
	if err := control(t.Context(), root, []mistake{one("a + b", "a - b", "^TestSum$")}); err != nil {
		t.Errorf("control: %v", err)
	}
	if err := os.WriteFile(filepath.Join(root, "p/p.go"), []byte("package p\n\nfunc Sum(a, b int) int { return 0 }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := control(t.Context(), root, []mistake{one("0", "1", "^TestSum$")}); err == nil {
		t.Error("a test that fails anyway is no control")
	}
}

// TestHuntCancelled: an interrupted hunt is no verdict.
func TestHuntCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	m := mistake{name: "it", edits: []edit{{"p/p.go", "a + b", "a - b"}}, by: unitTest("p", "^TestSum$")}
	if _, err := m.try(ctx, module(t)); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestViolation(t *testing.T) {
	if by, err := violation("x\nVIOLATION: lost update: sql-tx:0: write\n"); err != nil || by != "campaign: sql-tx: lost update" {
		t.Errorf("%q, %v", by, err)
	}
	if _, err := violation("campaign: no PostgreSQL"); err == nil {
		t.Error("a campaign that did not run has caught nothing")
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{{}, {"purge"}, {"-named", "a", "b"}, {"-nothing"}} {
		var out bytes.Buffer
		if code := command(t.Context(), t.TempDir(), args, &out, &out); code != 2 || out.Len() == 0 {
			t.Errorf("%q: exit %d: %s", args, code, &out)
		}
	}
}
