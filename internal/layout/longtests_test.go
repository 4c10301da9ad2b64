package layout

import (
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	testFunc = regexp.MustCompile(`(?m)^func (Test[A-Z]\w*)\(`)
	longName = regexp.MustCompile(`^TestLong([A-Z]|$)`)
	skips    = regexp.MustCompile(`\bt\.Skip|\btesting\.Short\(|Getenv\("FENCEPOST_LONG"\)`)
)

// TestLongTests: the tag "long" is the only switch. What stands behind it is
// named TestLong, because that is what the gate runs, and nothing is skipped.
func TestLongTests(t *testing.T) {
	read, long := 0, 0
	walk(t, func(path string, d fs.DirEntry) {
		if !strings.HasSuffix(path, "_test.go") {
			return
		}
		text := readPage(t, path)
		read++
		behind := isLong(text)
		for _, m := range testFunc.FindAllStringSubmatch(text, -1) {
			if longName.MatchString(m[1]) != behind && m[1] != "TestLongTests" {
				t.Errorf("%s: %s: a test is named TestLong if and only if its file has the constraint \"//go:build long\"", path, m[1])
			}
			if behind {
				long++
			}
		}
		if m := skips.FindString(text); m != "" && path != filepath.Join("internal", "layout", "longtests_test.go") {
			t.Errorf("%s has %s: a test that does not run must not look green", path, m)
		}
	})
	if read < 100 || long == 0 {
		t.Errorf("%d files read, %d long tests found: the check is broken", read, long)
	}
	if !isLong("//go:build long && unix\n\npackage p\n") || isLong("//go:build unix\n\npackage p\n") {
		t.Error("the constraint is not recognised")
	}
}

func isLong(text string) bool {
	line, _, _ := strings.Cut(text, "\n")
	return strings.HasPrefix(line, "//go:build ") && slices.Contains(strings.Fields(line), "long")
}

var (
	selects  = regexp.MustCompile("(?:go (?:-C (\\S+) )?test|FENCEPOST_TESTS=)[^`\n;&]*")
	selected = regexp.MustCompile(`-(run|bench|fuzz)[= ](?:['"]([^'"]+)['"]|([A-Z^]\S*))`)
	chosen   = regexp.MustCompile(`(?:^|\s)'?(\./[\w./-]*|\.)`)
)

// TestSelectedTestsExist: a command in a page, in a comment or in the gate that selects tests
// by name selects at least one. go test reports success for none.
func TestSelectedTestsExist(t *testing.T) {
	functions := map[string][]string{} // by directory
	var commands []struct{ where, line string }
	walk(t, func(path string, d fs.DirEntry) {
		if strings.HasSuffix(path, "_test.go") {
			for _, m := range selectable.FindAllStringSubmatch(readPage(t, path), -1) {
				functions[filepath.Dir(path)] = append(functions[filepath.Dir(path)], m[1])
			}
		}
		if path == filepath.Join("internal", "layout", "longtests_test.go") {
			return
		}
		if strings.HasSuffix(path, ".go") || strings.HasSuffix(path, ".md") {
			for _, command := range selects.FindAllString(readPage(t, path), -1) {
				commands = append(commands, struct{ where, line string }{path, command})
			}
		}
	})
	for _, path := range []string{".ci/run", ".ci/matrix"} {
		for _, command := range selects.FindAllString(readPage(t, path), -1) {
			commands = append(commands, struct{ where, line string }{path, command})
		}
	}
	checked := 0
	for _, c := range commands {
		n, bad := selectsNone(c.line, functions)
		checked += n
		for _, name := range bad {
			t.Errorf("%s: %q selects no test by %q", c.where, c.line, name)
		}
	}
	if checked < 6 {
		t.Errorf("%d selections found: the check is broken", checked)
	}
	there := map[string][]string{"a/b": {"TestOne"}}
	for line, want := range map[string]int{
		"go test -run TestOne ./a/b": 0, "go test -run TestTwo ./a/b": 1, "go -C a test -run 'Two|One' ./...": 0,
		"go test -run ^TestOn$ ./...": 1, "go test -run '^$' -bench Y ./a/b": 1, "go test -run TestOne ./c": 1,
	} {
		if _, bad := selectsNone(line, there); len(bad) != want {
			t.Errorf("%q: %q, want %d", line, bad, want)
		}
	}
}

var selectable = regexp.MustCompile(`(?m)^func ((?:Test|Benchmark|Fuzz|Example)\w*)\(`)

// selectsNone returns how many selections a command has, and those that match no function of
// its packages.
func selectsNone(command string, functions map[string][]string) (n int, bad []string) {
	from := selects.FindStringSubmatch(command)[1]
	packages := chosen.FindAllStringSubmatch(command, -1)
	switch {
	case strings.Contains(command, "$("):
		packages = [][]string{{"", "./..."}}
	case len(packages) == 0:
		packages = [][]string{{"", "."}}
	}
	for _, s := range selected.FindAllStringSubmatch(command, -1) {
		name, _, _ := strings.Cut(s[2]+s[3], "/")
		pattern, err := regexp.Compile(name)
		if name == "^$" || err != nil {
			continue // none on purpose, or a shell's variable
		}
		n++
		if !slices.ContainsFunc(packages, func(p []string) bool {
			dir, all := strings.CutSuffix(p[1], "...")
			dir = filepath.Join(from, dir)
			for where, names := range functions {
				if where != dir && !(all && (dir == "." || strings.HasPrefix(where, dir+"/"))) {
					continue
				}
				if slices.ContainsFunc(names, func(f string) bool {
					return strings.HasPrefix(f, map[string]string{"run": "", "bench": "Benchmark", "fuzz": "Fuzz"}[s[1]]) && pattern.MatchString(f)
				}) {
					return true
				}
			}
			return false
		}) {
			bad = append(bad, name)
		}
	}
	return n, bad
}
