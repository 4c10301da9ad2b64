package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
)

// huntMistakes tries the mistakes whose name matches pattern: each with its
// tests and, unless short, also with the campaign where an entry has it.
func huntMistakes(ctx context.Context, root, pattern string, times int, short bool, out, errs io.Writer) int {
	match, err := regexp.Compile(pattern)
	if err != nil {
		fmt.Fprintln(errs, "mutants: -named:", err)
		return 2
	}
	var chosen []mistake
	for _, m := range mistakes {
		if !match.MatchString(m.name) {
			continue
		}
		m.by.times = times
		chosen = append(chosen, m)
		if m.also != nil && !short {
			m.by = *m.also
			chosen = append(chosen, m)
		}
	}
	if len(chosen) == 0 {
		fmt.Fprintln(errs, "mutants: none matches")
		return 2
	}
	if err := control(ctx, root, chosen); err != nil {
		fmt.Fprintln(errs, "mutants: without a mutant:", err)
		return 2
	}
	return tryAll(ctx, root, chosen, out)
}

// hunted is the result for one mutant.
type hunted struct {
	by      string
	seconds float64
	code    int
}

// tryAll tries the mistakes, two at a time, and prints the table. A mistake for
// the campaign gets the machine to itself.
func tryAll(ctx context.Context, root string, chosen []mistake, out io.Writer) int {
	results := make([]hunted, len(chosen))
	free := make(chan struct{}, 2)
	var alone sync.RWMutex
	var group sync.WaitGroup
	for i, m := range chosen {
		group.Go(func() {
			free <- struct{}{}
			defer func() { <-free }()
			if m.by.what == "campaign" {
				alone.Lock()
				defer alone.Unlock()
			} else {
				alone.RLock()
				defer alone.RUnlock()
			}
			results[i] = m.hunt(ctx, root)
		})
	}
	group.Wait()
	code := 0
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "mutant\tcaught by\tseconds")
	for i, r := range results {
		fmt.Fprintf(w, "%s\t%s\t%.1f\n", chosen[i].name, r.by, r.seconds)
		code = max(code, r.code)
	}
	w.Flush()
	return code
}

func (m mistake) hunt(ctx context.Context, root string) (h hunted) {
	began := time.Now()
	by, err := try(ctx, root, m)
	h.by, h.seconds = by, time.Since(began).Seconds()
	switch {
	case errors.Is(err, errSurvived):
		h.by, h.code = fmt.Sprintf("NOTHING: it survived %v (%v)", m.by, err), 1
	case err != nil:
		h.by, h.code = "ERROR: "+err.Error(), 2
	}
	return h
}

func (c catcher) String() string {
	return c.what + " " + strings.Trim(c.tests, "^$()") + " (" + c.pkg + ")"
}

// control runs the tests on the unchanged repository: a test that fails anyway
// catches nothing.
func control(ctx context.Context, root string, chosen []mistake) error {
	patterns := map[string][]string{}
	for _, m := range chosen {
		if m.by.what != "campaign" {
			patterns[m.by.pkg] = append(patterns[m.by.pkg], m.by.tests)
		}
	}
	for pkg, tests := range patterns {
		if out, err := goTest(ctx, root, catcher{pkg: pkg, tests: strings.Join(tests, "|")}, ""); err != nil {
			return fmt.Errorf("%s: %w\n%s", pkg, err, out)
		}
	}
	return nil
}

var errSurvived = errors.New("survived")

// try builds one mutant and returns what caught it.
func try(ctx context.Context, root string, m mistake) (string, error) {
	dir, err := os.MkdirTemp("", "fencepost-mutant-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	overlay, err := m.overlay(root, dir)
	if err != nil {
		return "", err
	}
	var out []byte
	if m.by.what == "campaign" {
		out, err = goCampaign(ctx, root, m.by.tests+" -artefacts "+filepath.Join(dir, "run"), overlay)
	} else {
		out, err = goTest(ctx, root, m.by, overlay)
	}
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case err == nil:
		return "", errSurvived
	case !errors.As(err, &exit):
		return "", err
	}
	return m.by.evidence(out)
}

// evidence distinguishes a failed test from one that did not run.
func (c catcher) evidence(out []byte) (string, error) {
	if c.what == "campaign" {
		if line := regexp.MustCompile(`(?m)^VIOLATION: ([^:]+): ([^:]+)`).FindSubmatch(out); line != nil {
			return fmt.Sprintf("campaign: %s: %s", line[2], line[1]), nil
		}
		return "", fmt.Errorf("the campaign failed without a violation: %s", last(out))
	}
	if bytes.Contains(out, []byte("[build failed]")) || bytes.Contains(out, []byte("[setup failed]")) {
		return "", fmt.Errorf("it does not compile: %s", last(out))
	}
	failed := regexp.MustCompile(`(?m)^--- FAIL: (\S+)`).FindAllSubmatch(out, -1)
	if failed == nil {
		return "", fmt.Errorf("no test failed, but go test did: %s", last(out))
	}
	if len(failed) < c.times {
		return "", fmt.Errorf("it was caught %d times of %d: %w", len(failed), c.times, errSurvived)
	}
	by := fmt.Sprintf("%s %s (%s)", c.what, failed[0][1], c.pkg)
	if c.times > 1 {
		by += fmt.Sprintf(", %d times of %d", len(failed), c.times)
	}
	return by, nil
}

func last(out []byte) string {
	text := strings.TrimSpace(string(out))
	return text[max(0, len(text)-600):]
}

// overlay writes the mistake's files and the go command's overlay list.
func (m mistake) overlay(root, dir string) (string, error) {
	content := map[string]string{}
	for _, e := range m.edits {
		name := filepath.Join(root, e.file)
		if _, ok := content[name]; !ok {
			original, err := os.ReadFile(name)
			if err != nil {
				return "", fmt.Errorf("mistake %q in internal/mutants/mistakes.go: %w", m.name, err)
			}
			content[name] = string(original)
		}
		if n := strings.Count(content[name], e.old); n != 1 {
			return "", fmt.Errorf("%s has the text that mistake %q replaces %d times, not once; change that entry of internal/mutants/mistakes.go with the code. The text is\n%s", e.file, m.name, n, indent(e.old))
		}
		content[name] = strings.Replace(content[name], e.old, e.new, 1)
	}
	return writeOverlay(dir, content)
}

// goTest runs tests of a package; overlay may be empty.
func goTest(ctx context.Context, root string, c catcher, overlay string) ([]byte, error) {
	// Without symbols the test binaries are linked in half the time.
	args := []string{"test", fmt.Sprintf("-count=%d", max(1, c.times)), "-timeout=10m", "-vet=off", "-ldflags=-s -w", "-run=" + c.tests}
	if overlay != "" {
		args = append(args, "-overlay="+overlay)
	}
	return goCommand(ctx, root, append(args, "./"+c.pkg)...)
}

// goCampaign runs the campaign with the given flags.
func goCampaign(ctx context.Context, root, flags, overlay string) ([]byte, error) {
	args := append([]string{"run", "-overlay=" + overlay, "."}, strings.Fields(flags)...)
	return goCommand(ctx, filepath.Join(root, "internal/suites/campaign"), args...)
}
