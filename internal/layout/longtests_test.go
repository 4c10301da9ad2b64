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
