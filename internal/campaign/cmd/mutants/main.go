// Command mutants breaks Fencepost in one place at a time, and says by which
// test each break is noticed.
//
//	go -C internal/campaign run ./cmd/mutants              all of them
//	go -C internal/campaign run ./cmd/mutants -run purge   those whose name matches
//	go -C internal/campaign run ./cmd/mutants -times 10    each test must catch its mutant ten times in ten
//
// Nothing in the repository is changed: a mutant is an overlay of the go
// command. The exit status is 0 if every mutant was caught, 1 if one survived,
// 2 if the text that one replaces is not there exactly once, if a mutant does
// not compile, or if a test fails without it.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	os.Exit(command(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func command(ctx context.Context, args []string, out, errs io.Writer) int {
	flags := flag.NewFlagSet("mutants", flag.ContinueOnError)
	flags.SetOutput(errs)
	pattern := flags.String("run", "", "only mutants whose name matches this regular expression")
	short := flags.Bool("short", false, "by the tests alone, which take a few seconds each, not by the campaign")
	times := flags.Int("times", 1, "how often each test must catch its mutant")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	match, err := regexp.Compile(*pattern)
	if err != nil {
		fmt.Fprintln(errs, "mutants: -run:", err)
		return 2
	}
	root, err := repository(ctx)
	if err != nil {
		fmt.Fprintln(errs, "mutants:", err)
		return 2
	}
	var chosen []mutant
	for _, m := range mutants {
		if !match.MatchString(m.name) {
			continue
		}
		m.by.times = *times
		chosen = append(chosen, m)
		if m.also != nil && !*short {
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
	return hunt(ctx, root, chosen, out)
}

// hunted is what became of one mutant.
type hunted struct {
	by      string
	seconds float64
	code    int
}

// hunt tries the mutants, two at a time, and prints the table. One that the
// campaign is to catch has the machine to itself.
func hunt(ctx context.Context, root string, chosen []mutant, out io.Writer) int {
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

func (m mutant) hunt(ctx context.Context, root string) (h hunted) {
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

// repository is the directory of the module under test.
func repository(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/fencepost-go/fencepost").Output()
	if err != nil {
		return "", fmt.Errorf("go list: %w; run it with go -C internal/campaign", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// control runs the tests on the repository as it is: one that fails anyway
// catches nothing.
func control(ctx context.Context, root string, chosen []mutant) error {
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
func try(ctx context.Context, root string, m mutant) (string, error) {
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

// evidence tells a failed test from one that did not run.
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

// overlay writes the mutant's files and the list that the go command takes.
func (m mutant) overlay(root, dir string) (string, error) {
	content := map[string]string{}
	for _, e := range m.edits {
		if _, ok := content[e.file]; !ok {
			original, err := os.ReadFile(filepath.Join(root, e.file))
			if err != nil {
				return "", err
			}
			content[e.file] = string(original)
		}
		if n := strings.Count(content[e.file], e.old); n != 1 {
			return "", fmt.Errorf("%s has %d times, not once: %s", e.file, n, e.old)
		}
		content[e.file] = strings.Replace(content[e.file], e.old, e.new, 1)
	}
	replace := map[string]string{}
	for file, text := range content {
		name := filepath.Join(dir, strings.ReplaceAll(file, "/", "_"))
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			return "", err
		}
		replace[filepath.Join(root, file)] = name
	}
	encoded, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	name := filepath.Join(dir, "overlay.json")
	return name, os.WriteFile(name, encoded, 0o600)
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
	return goCommand(ctx, filepath.Join(root, "internal/campaign"), args...)
}

// goCommand runs the go command in a process group of its own, so that what it
// starts ends with it.
func goCommand(ctx context.Context, dir string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second
	return cmd.CombinedOutput()
}
