package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
)

// huntMistakes tries the mistakes whose name matches pattern: each with its
// tests and, unless short, also with the campaign where an entry has it.
func huntMistakes(ctx context.Context, root, pattern string, times int, short bool, out io.Writer) (code int, err error) {
	match, err := regexp.Compile(pattern)
	if err != nil {
		return 2, err
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
		return 2, errors.New("no mistake has such a name")
	}
	if err := control(ctx, root, chosen); err != nil {
		return 2, fmt.Errorf("without a mutant: %w", err)
	}
	return tryAll(ctx, root, chosen, out), nil
}

// twoAtATime calls do for 0 to n-1. Tests wait half of the time.
func twoAtATime(n int, do func(int)) {
	free := make(chan struct{}, 2)
	var group sync.WaitGroup
	for i := range n {
		free <- struct{}{}
		group.Go(func() { do(i); <-free })
	}
	group.Wait()
}

// tryAll tries the mistakes and prints the table. A mistake for the campaign
// gets the machine to itself.
func tryAll(ctx context.Context, root string, chosen []mistake, out io.Writer) (code int) {
	verdicts, codes, took := make([]string, len(chosen)), make([]int, len(chosen)), make([]time.Duration, len(chosen))
	var alone sync.RWMutex
	twoAtATime(len(chosen), func(i int) {
		if chosen[i].by.what == "campaign" {
			alone.Lock()
			defer alone.Unlock()
		} else {
			alone.RLock()
			defer alone.RUnlock()
		}
		began := time.Now()
		verdicts[i], codes[i] = chosen[i].verdict(ctx, root)
		took[i] = time.Since(began)
	})
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "mutant\tcaught by\tseconds")
	for i, m := range chosen {
		fmt.Fprintf(w, "%s\t%s\t%.1f\n", m.name, verdicts[i], took[i].Seconds())
		code = max(code, codes[i])
	}
	w.Flush()
	return code
}

func (m mistake) verdict(ctx context.Context, root string) (verdict string, code int) {
	by, err := m.try(ctx, root)
	switch {
	case errors.Is(err, errSurvived):
		return fmt.Sprintf("NOTHING: it survived %v (%v)", m.by, err), 1
	case err != nil:
		return "ERROR: " + err.Error(), 2
	}
	return by, 0
}

func (c catcher) String() string {
	return c.what + " " + strings.Trim(c.tests, "^$()") + " (" + c.pkg + ")"
}

// control runs the tests on the unchanged repository: a test that fails anyway
// catches nothing.
func control(ctx context.Context, root string, chosen []mistake) error {
	tests := map[string]string{} // patterns by package
	var pkgs []string
	for _, m := range chosen {
		switch pattern := tests[m.by.pkg]; {
		case m.by.what == "campaign":
		case pattern == "":
			pkgs = append(pkgs, m.by.pkg)
			tests[m.by.pkg] = m.by.tests
		case !strings.Contains(pattern, m.by.tests):
			tests[m.by.pkg] += "|" + m.by.tests
		}
	}
	errs := make([]error, len(pkgs))
	twoAtATime(len(pkgs), func(i int) {
		if out, err := goTest(ctx, root, pkgs[i], tests[pkgs[i]], nil); err != nil {
			errs[i] = fmt.Errorf("%s: %w\n%s", pkgs[i], err, out)
		}
	})
	return errors.Join(errs...)
}

var errSurvived = errors.New("survived")

// try builds one mutant and returns what caught it.
func (m mistake) try(ctx context.Context, root string) (string, error) {
	changed, err := m.changed(root)
	if err != nil {
		return "", err
	}
	if m.by.what == "campaign" {
		return m.tryCampaign(ctx, root, changed)
	}
	out, err := goTest(ctx, root, m.by.pkg, m.by.tests, changed, fmt.Sprintf("-count=%d", max(1, m.by.times)))
	caught, err := failures(ctx, out, err)
	switch {
	case err != nil:
		return "", err
	case len(caught) == 0:
		return "", errSurvived
	case len(caught) < m.by.times:
		return "", fmt.Errorf("it was caught %d times of %d: %w", len(caught), m.by.times, errSurvived)
	}
	by := fmt.Sprintf("%s %s (%s)", m.by.what, caught[0], m.by.pkg)
	if m.by.times > 1 {
		by += fmt.Sprintf(", %d times of %d", len(caught), m.by.times)
	}
	return by, nil
}

func (m mistake) tryCampaign(ctx context.Context, root string, changed map[string]string) (string, error) {
	artefacts, err := os.MkdirTemp("", "fencepost-mutant-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(artefacts)
	args := append([]string{"run", ".", "-artefacts", filepath.Join(artefacts, "run")}, strings.Fields(m.by.tests)...)
	out, err := withOverlay(ctx, filepath.Join(root, m.by.pkg), changed, args...)
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case err == nil:
		return "", errSurvived
	}
	return violation(string(out))
}

// violation tells a violation that the campaign reports from a campaign that did
// not run.
func violation(out string) (string, error) {
	line := regexp.MustCompile(`(?m)^VIOLATION: ([^:]+): ([^:]+)`).FindStringSubmatch(out)
	if line == nil {
		return "", fmt.Errorf("the campaign failed without a violation: %s", last(out))
	}
	return fmt.Sprintf("campaign: %s: %s", line[2], line[1]), nil
}

// changed returns the mistake's files.
func (m mistake) changed(root string) (map[string]string, error) {
	content := map[string]string{}
	for _, e := range m.edits {
		name := filepath.Join(root, e.file)
		if _, ok := content[name]; !ok {
			original, err := os.ReadFile(name)
			if err != nil {
				return nil, fmt.Errorf("mistake %q in internal/suites/mutants/mistakes.go: %w", m.name, err)
			}
			content[name] = string(original)
		}
		if n := strings.Count(content[name], e.old); n != 1 {
			return nil, fmt.Errorf("%s has the text that mistake %q replaces %d times, not once; change that entry of internal/suites/mutants/mistakes.go with the code. The text is\n    %s", e.file, m.name, n, strings.ReplaceAll(e.old, "\n", "\n    "))
		}
		content[name] = strings.Replace(content[name], e.old, e.new, 1)
	}
	return content, nil
}
