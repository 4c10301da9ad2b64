package layout

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var link = regexp.MustCompile(`\]\(([^()\s]+)\)`)

// Every link of a page to another file of the repository leads there.
func TestLinksLead(t *testing.T) {
	links := 0
	check := func(page string) {
		n, problems := brokenLinks(filepath.Join(root(t), filepath.Dir(page)), readPage(t, page))
		links += n
		for _, problem := range problems {
			t.Errorf("%s: %s", page, problem)
		}
	}
	walk(t, func(path string, _ fs.DirEntry) {
		if filepath.Ext(path) == ".md" {
			check(path)
		}
	})
	entries, err := os.ReadDir(filepath.Join(root(t), ".github"))
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries { // walk leaves out what begins with a dot
		if filepath.Ext(entry.Name()) == ".md" {
			check(filepath.Join(".github", entry.Name()))
		}
	}
	if links < 30 {
		t.Errorf("%d links found: the check is broken", links)
	}
	// The check must be able to fail.
	if _, problems := brokenLinks(root(t), "[a page](no-such-page.md)"); len(problems) != 1 {
		t.Errorf("a broken link: %q", problems)
	}
}

// brokenLinks checks the links of a page in a directory that lead to files.
func brokenLinks(dir, page string) (links int, problems []string) {
	for _, m := range link.FindAllStringSubmatch(page, -1) {
		file, _, _ := strings.Cut(m[1], "#")
		if file == "" || strings.Contains(file, "://") {
			continue
		}
		links++
		if _, err := os.Stat(filepath.Join(dir, filepath.FromSlash(file))); err != nil {
			problems = append(problems, fmt.Sprintf("%s leads nowhere", m[0]))
		}
	}
	return links, problems
}

// The index of the examples has each of them.
func TestExamplesIndex(t *testing.T) {
	index := readPage(t, "examples/README.md")
	programs := 0
	for _, dir := range []string{"examples", "examples/thirdparty"} {
		entries, err := os.ReadDir(filepath.Join(root(t), filepath.FromSlash(dir)))
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			if !entry.IsDir() || entry.Name() == "internal" || entry.Name() == "thirdparty" {
				continue
			}
			programs++
			name := strings.TrimPrefix(dir+"/"+entry.Name(), "examples/")
			if !strings.Contains(index, "| ["+entry.Name()+"]("+name) {
				t.Errorf("examples/README.md does not have %s", name)
			}
		}
	}
	if programs < 12 {
		t.Errorf("%d examples found: the check is broken", programs)
	}
}
