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
	root, err := repository(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, m := range mistakes {
		if names[m.name] || m.wrong == "" {
			t.Errorf("%q is there twice, or does not say what is wrong", m.name)
		}
		names[m.name] = true
		if _, err := m.overlay(root, t.TempDir()); err != nil {
			t.Error(err)
		}
		if text := testText(t, filepath.Join(root, m.by.pkg)); !strings.Contains(text, "\nfunc "+strings.Trim(m.by.tests, "^$")+"(") {
			t.Errorf("mistake %q in internal/mutants/mistakes.go: %s has no test %s", m.name, m.by.pkg, m.by.tests)
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

// sum is a module of one package with one test.
func sum(t *testing.T) string {
	return module(t, map[string]string{
		"p/p.go":      "package p\n\nfunc Sum(a, b int) int { return a + b }\n",
		"p/p_test.go": "package p\n\nimport \"testing\"\n\nfunc TestSum(t *testing.T) {\n\tif Sum(1, 2) != 3 {\n\t\tt.Fail()\n\t}\n}\n",
	})
}

// TestHunt: the command can return each of its verdicts.
func TestHunt(t *testing.T) {
	root := sum(t)
	one := func(old, new, tests string) mistake {
		return mistake{name: "it", wrong: "it", edits: []edit{{"p/p.go", old, new}}, by: unitTest("p", tests)}
	}
	for _, c := range []struct {
		m    mistake
		code int
		says string
	}{
		{one("a + b", "a - b", "^TestSum$"), 0, "unit test TestSum (p)"},
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
	if _, err := try(ctx, sum(t), m); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// TestEveryTime: a test that catches a mutant only sometimes does not count.
func TestEveryTime(t *testing.T) {
	c := unitTest("p", "^TestSum$")
	c.times = 3
	const fail = "--- FAIL: TestSum (0.00s)\n"
	if by, err := c.evidence([]byte(fail + fail + fail)); err != nil || !strings.Contains(by, "3 times of 3") {
		t.Errorf("%q, %v", by, err)
	}
	if _, err := c.evidence([]byte(fail + fail)); !errors.Is(err, errSurvived) {
		t.Errorf("%v", err)
	}
}

func TestEvidenceOfTheCampaign(t *testing.T) {
	c := *theCampaign
	if by, err := c.evidence([]byte("x\nVIOLATION: lost update: sql-tx:0: write\n")); err != nil || by != "campaign: sql-tx: lost update" {
		t.Errorf("%q, %v", by, err)
	}
	if _, err := c.evidence([]byte("campaign: no PostgreSQL")); err == nil {
		t.Error("a campaign that did not run has caught nothing")
	}
}
