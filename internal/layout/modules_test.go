package layout

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// modules are the modules of the repository. Another one needs a reason: each is
// one more place to upgrade, to tag and to drift.
var modules = []string{
	".", "examples/thirdparty", "guard/guardotel", "httpfence/grpcfence", "internal/suites", "lockclient/cmd/fencectl", "lockclient/etcdlock", "lockclient/zklock",
}

// TestModules holds the list of modules against the repository, Dependabot's
// configuration and the contributors' page.
func TestModules(t *testing.T) {
	var found []string
	walk(t, func(path string, d fs.DirEntry) {
		if d.Name() == "go.mod" {
			found = append(found, filepath.ToSlash(filepath.Dir(path)))
		}
	})
	slices.Sort(found)
	if !slices.Equal(found, modules) {
		t.Errorf("the modules are %q, not %q", found, modules)
	}
	bot, page := readPage(t, ".github/dependabot.yml"), readPage(t, ".github/CONTRIBUTING.md")
	for _, m := range modules {
		if !strings.Contains(bot, "      - /"+strings.TrimPrefix(m, ".")+"\n") {
			t.Errorf(".github/dependabot.yml does not have the module %s", m)
		}
		if m != "." && !strings.Contains(page, "`"+m+"`") {
			t.Errorf(".github/CONTRIBUTING.md does not name the module %s", m)
		}
	}
}

type requirement struct {
	Path, Version string
	Indirect      bool
}

// TestVersionsAgree: what several modules require directly, they require in one
// version, so that the suites test what users get.
func TestVersionsAgree(t *testing.T) {
	all := map[string][]requirement{}
	for _, m := range modules {
		var mod struct{ Require []requirement }
		if err := json.Unmarshal(run(t, "go", "mod", "edit", "-json", m+"/go.mod"), &mod); err != nil {
			t.Fatal(err)
		}
		all[m] = mod.Require
	}
	for _, problem := range disagreements(all) {
		t.Error(problem)
	}
	// The check must be able to fail.
	drift := map[string][]requirement{"a": {{Path: "example.com/x", Version: "v1.0.0"}}, "b": {{Path: "example.com/x", Version: "v1.1.0"}}}
	if len(disagreements(drift)) == 0 {
		t.Error("two versions of one module are not noticed")
	}
}

func disagreements(all map[string][]requirement) (problems []string) {
	seen := map[string]string{} // the first version, and where it is required
	names := make([]string, 0, len(all))
	for m := range all {
		names = append(names, m)
	}
	slices.Sort(names)
	for _, m := range names {
		for _, r := range all[m] {
			if r.Indirect || strings.HasPrefix(r.Path, module) {
				continue
			}
			if first, ok := seen[r.Path]; !ok {
				seen[r.Path] = r.Version + " in " + m
			} else if version, _, _ := strings.Cut(first, " "); version != r.Version {
				problems = append(problems, r.Path+" is "+first+" and "+r.Version+" in "+m)
			}
		}
	}
	return problems
}

var (
	named    = regexp.MustCompile("`([a-zA-Z.]+(?:/[a-zA-Z0-9_.-]+)+)`")
	inModule = regexp.MustCompile(`\bgo (?:-C (\S+) )?(?:test|run) (.*?)\x60`)
)

// TestContributing: what the contributors' page names exists, and it stays a
// page.
func TestContributing(t *testing.T) {
	page := readPage(t, ".github/CONTRIBUTING.md")
	if n := strings.Count(page, "\n"); n > 120 {
		t.Errorf("%d lines, 120 are allowed", n)
	}
	paths := 0
	exists := func(path string) {
		paths++
		if !thereIs(t, path) {
			t.Errorf("%s does not exist", path)
		}
	}
	for _, m := range named.FindAllStringSubmatch(page, -1) {
		if m[1] != "testing/synctest" {
			exists(m[1])
		}
	}
	for _, m := range inModule.FindAllStringSubmatch(page, -1) {
		for _, word := range strings.Fields(m[2]) {
			if path := strings.TrimSuffix(word, "/..."); strings.HasPrefix(path, "./") {
				exists(filepath.Join(m[1], path))
			}
		}
	}
	if paths < 20 {
		t.Errorf("%d paths found: the check is broken", paths)
	}
	if thereIs(t, "internal/nosuchthing") {
		t.Error("what does not exist is not noticed")
	}
}

// thereIs looks for a path, which the page may give from the root, from
// lockclient/internal or from .github.
func thereIs(t *testing.T, path string) bool {
	for _, from := range []string{"", "lockclient", "lockclient/driver", "lockclient/internal", ".github"} {
		if _, err := os.Stat(filepath.Join(root(t), from, path)); err == nil {
			return true
		}
	}
	return false
}

// walk calls f for each file of the repository, by its path from the root.
func walk(t *testing.T, f func(path string, d fs.DirEntry)) {
	t.Helper()
	top := root(t)
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); path != top && strings.HasPrefix(name, ".") && name != ".github" || name == "node_modules" {
				return fs.SkipDir
			}
			return nil
		}
		rel, err := filepath.Rel(top, path)
		f(rel, d)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
