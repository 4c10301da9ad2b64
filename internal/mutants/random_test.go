package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestMutate: what is changed, in SQL and in the SQL of Go.
func TestMutate(t *testing.T) {
	for _, c := range []struct {
		file, text string
		want       []string
	}{
		{"a.sql", "CREATE FUNCTION ours.f()\n  WHERE a = 1\n    AND greatest(b, 2) > $1 -- a > 3", []string{
			"ours.f = -> <>", "ours.f other constant", "ours.f AND -> OR", "ours.f greatest -> least", "ours.f other constant", "ours.f > -> >=", "ours.f remove line", "ours.f remove line",
		}},
		{"a.go", "package a\n\nconst one = 1\n\nfunc f() (string, string) { return \"a > b\", `SELECT a > b` }\n", []string{"f > -> >="}},
	} {
		all, err := sqlMutants(c.file, c.text)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, m := range all {
			got = append(got, m.function+" "+m.operator)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.file, got, c.want)
		}
	}
}

// TestHuntRandom: a mutant is killed, survives, is no SQL or is known to do the
// same.
func TestHuntRandom(t *testing.T) {
	root := module(t)
	var out bytes.Buffer
	code, err := huntRandom(t.Context(), root, "p", "SQL", 1, 0, &out)
	if err != nil || code != 1 {
		t.Errorf("exit %d, %v", code, err)
	}
	for _, want := range []string{
		"SURVIVED p.go:10 in statement: other constant\n    - func statement() string { return \"SELECT true, 7\" }\n    + func",
		"2 mutants of the SQL of p: 1 killed, 1 survived; not counted: 1 are not valid SQL, 1 are known to be equivalent",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, &out)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "p/testdata/equivalent_mutants.txt"), []byte("in f\n- x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := huntRandom(t.Context(), root, "p", "SQL", 1, 0, &out); err == nil || !strings.Contains(err.Error(), "because REASON") {
		t.Errorf("a bad list: %v", err)
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{{}, {"./p", "./p"}, {"-named", "a", "b"}, {"-nothing"}} {
		var out bytes.Buffer
		if code := command(t.Context(), t.TempDir(), args, &out, &out); code != 2 || out.Len() == 0 {
			t.Errorf("%q: exit %d: %s", args, code, &out)
		}
	}
}
