package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
)

// invalidSQL matches the errors of an invalid statement, as drivers print their
// SQLSTATE.
var invalidSQL = regexp.MustCompile(`SQLSTATE (42601|42703|42702|42883|42804|42803|42P02|42P10|42P13|42P17|42846|22P02)|syntax error at`)

// hunt is one run over random mutants of the SQL of a package.
type hunt struct {
	root, pkg, tests string
	dir              string            // the package's
	text             map[string]string // its files
	equivalent       map[string]string // reasons, by function and diff
	out              io.Writer

	mu                              sync.Mutex
	killed, survived, invalid, same int
}

// huntRandom tries mutants in an order that the seed determines until n of them
// are valid SQL. It fails if one survives.
func huntRandom(ctx context.Context, root, pkg, tests string, seed uint64, n int, out io.Writer) (code int, err error) {
	h := &hunt{root: root, pkg: pkg, tests: tests, text: map[string]string{}, out: out}
	all, err := h.load(ctx)
	if err != nil {
		return 2, err
	}
	rand.New(rand.NewPCG(seed, 0)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	if n <= 0 {
		n = len(all)
	}
	if out, err := goTest(ctx, root, pkg, tests, nil); err != nil {
		return 2, fmt.Errorf("without a mutant: %w\n%s", err, out)
	}
	for len(all) > 0 && h.killed+h.survived < n {
		batch := all[:min(len(all), n-h.killed-h.survived)]
		all = all[len(batch):]
		errs := make([]error, len(batch))
		twoAtATime(len(batch), func(i int) { errs[i] = h.try(ctx, batch[i]) })
		if err := errors.Join(errs...); err != nil {
			return 2, err
		}
	}
	fmt.Fprintf(out, "%d mutants of the SQL of %s: %d killed, %d survived; not counted: %d are not valid SQL, %d are known to be equivalent\n",
		h.killed+h.survived, pkg, h.killed, h.survived, h.invalid, h.same)
	return min(1, h.survived), nil
}

// load reads the package and makes its mutants.
func (h *hunt) load(ctx context.Context) (all []mutant, err error) {
	listed, err := goCommand(ctx, h.root, "list", "-json=Dir,GoFiles,EmbedFiles", "./"+filepath.ToSlash(h.pkg))
	if err != nil {
		return nil, fmt.Errorf("go list: %w: %s", err, listed)
	}
	var p struct {
		Dir                 string
		GoFiles, EmbedFiles []string
	}
	if err := json.Unmarshal(listed, &p); err != nil {
		return nil, fmt.Errorf("%s is not one package: %w", h.pkg, err)
	}
	h.dir = p.Dir
	if h.equivalent, err = readEquivalents(filepath.Join(p.Dir, "testdata", "equivalent_mutants.txt")); err != nil {
		return nil, err
	}
	for _, name := range append(p.GoFiles, p.EmbedFiles...) {
		if ext := filepath.Ext(name); ext != ".go" && ext != ".sql" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(p.Dir, name))
		if err != nil {
			return nil, err
		}
		h.text[name] = string(text)
		some, err := sqlMutants(name, h.text[name])
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

// try decides about one mutant.
func (h *hunt) try(ctx context.Context, m mutant) error {
	text := h.text[m.file]
	diff := m.diff(text)
	if _, ok := h.equivalent[m.function+"\n"+diff]; ok {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.same++
		return nil
	}
	out, err := goTest(ctx, h.root, h.pkg, h.tests, map[string]string{filepath.Join(h.dir, m.file): m.apply(text)}, "-failfast", "-count=1")
	caught, err := failures(ctx, out, err)
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case len(caught) > 0 && invalidSQL.Match(out):
		h.invalid++
	case len(caught) > 0, err != nil && strings.Contains(string(out), "panic: test timed out after "):
		h.killed++
	case err != nil:
		return err
	default:
		h.survived++
		fmt.Fprintf(h.out, "SURVIVED %s:%d in %s: %s\n    %s\n", m.file, 1+strings.Count(text[:m.start], "\n"),
			m.function, m.operator, strings.ReplaceAll(strings.TrimRight(diff, "\n"), "\n", "\n    "))
	}
	return nil
}

// readEquivalents reads a package's list of mutants that do the same as the
// original, so that no test can notice them. An entry is the function, the
// removed and added lines as a survivor is printed, and the reason:
//
//	in fencepost.release
//	- SET lease_id = NULL
//	+ SET lease_id = NOT NULL
//	because NOT NULL is NULL
//
// Empty lines separate entries; lines that begin with # are comments. Outside of
// any function it is "in -".
func readEquivalents(file string) (reasons map[string]string, err error) {
	content, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	reasons = map[string]string{}
	entry := regexp.MustCompile(`^in (\S+)\n((?:[-+] .*\n)+)because (.+)$`)
	text := regexp.MustCompile(`(?m)^#.*\n`).ReplaceAllString(string(content), "")
	for part := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		m := entry.FindStringSubmatch(strings.TrimSpace(part))
		if m == nil {
			return nil, fmt.Errorf("%s: an entry is `in FUNCTION`, lines with - and +, and `because REASON`, not\n%s", file, part)
		}
		reasons[strings.TrimPrefix(m[1], "-")+"\n"+m[2]] = m[3]
	}
	return reasons, nil
}
