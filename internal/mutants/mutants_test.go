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

func TestUsage(t *testing.T) {
	root := module(t, map[string]string{"bad/bad.go": "package bad\n", "bad/testdata/equivalent_mutants.txt": "in F\n- x\n"})
	for _, args := range [][]string{{}, {"./p", "./p"}, {"./none"}, {"./..."}, {"-only", "x", "./p"}, {"-only", "99999", "./p"}, {"./bad"}} {
		var out bytes.Buffer
		if code := command(t.Context(), root, args, &out, &out); code != 2 {
			t.Errorf("%q: exit %d: %s", args, code, &out)
		}
	}
}
