// Command mutants breaks a package in one place at a time, and reports which
// breaks its tests do not notice. See README.md.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	root, err := repository(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(2)
	}
	os.Exit(command(ctx, root, os.Args[1:], os.Stdout, os.Stderr))
}

// repository is the directory of the module in which the command runs.
func repository(ctx context.Context) (string, error) {
	out, err := goCommand(ctx, ".", "list", "-m", "-f", "{{.Dir}}")
	if err != nil {
		return "", fmt.Errorf("go list -m: %w: %s", err, out)
	}
	return strings.TrimSpace(string(out)), nil
}

// hunt is one run of the command over random mutants.
type hunt struct {
	root, pattern string
	seed          uint64
	p             *goPackage
	suites        []*testSuite
	tests         []string // the suites' patterns
	workers       int
	known         []equivalent
	out           io.Writer

	mu                                                               sync.Mutex
	counted, killed, survived, timedOut, uncompiled, knownEquivalent int
}

func command(ctx context.Context, root string, args []string, out, errs io.Writer) int {
	flags := flag.NewFlagSet("mutants", flag.ContinueOnError)
	flags.SetOutput(errs)
	seed := flags.Uint64("seed", 1, "the order in which mutants are taken")
	n := flags.Int("n", 60, "how many mutants that compile; 0 is all")
	only := flags.String("only", "", "only the mutants with these indices of the seed's order: 17,42")
	tests := flags.String("tests", "", "packages whose tests run besides the package's own: ./a,./b")
	minimum := flags.Int("min", -1, "succeed if so many are killed; without it, if none survives")
	workers := flags.Int("p", runtime.NumCPU(), "how many mutants at a time")
	named := flags.Bool("named", false, "try the mistakes of mistakes.go, or those whose name matches the argument, each by the test that is named for it")
	short := flags.Bool("short", false, "with -named: by the tests alone, which take a few seconds each, not by the campaign")
	times := flags.Int("times", 1, "with -named: how often each test must catch its mistake")
	list := flags.Bool("list", false, "print the mutants, run nothing")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if *named {
		return huntMistakes(ctx, root, flags.Arg(0), *times, *short, out, errs)
	}
	fail := func(err error) int {
		fmt.Fprintln(errs, "mutants:", err)
		return 2
	}
	if flags.NArg() != 1 {
		return fail(fmt.Errorf("name one package, after the flags"))
	}
	h := &hunt{root: root, pattern: flags.Arg(0), seed: *seed, workers: *workers, out: out}
	var err error
	if h.p, err = load(ctx, root, h.pattern); err != nil {
		return fail(err)
	}
	if h.known, err = readEquivalents(filepath.Join(h.p.dir, "testdata", "equivalent_mutants.txt")); err != nil {
		return fail(err)
	}
	chosen := h.p.mutants(*seed)
	if *only != "" {
		var some []mutant
		for field := range strings.SplitSeq(*only, ",") {
			i, err := strconv.Atoi(field)
			if err != nil || i < 0 || i >= len(chosen) {
				return fail(fmt.Errorf("-only %s: not an index from 0 to %d", field, len(chosen)-1))
			}
			some = append(some, chosen[i])
		}
		chosen = some
	}
	if *list {
		for _, m := range chosen {
			fmt.Fprintf(out, "%d %s\n", m.index, h.describe(m))
		}
		return 0
	}
	began := time.Now()
	if err := h.measure(ctx, *tests); err != nil {
		return fail(err)
	}
	if err := h.run(ctx, chosen, *n); err != nil {
		return fail(err)
	}
	h.summary(time.Since(began))
	switch {
	case *minimum >= 0 && h.killed < *minimum:
		fmt.Fprintf(out, "ERROR: too few were killed: %d, not %d\n", h.killed, *minimum)
		return 1
	case *minimum < 0 && h.survived > 0:
		return 1
	}
	return 0
}

// measure prepares the tests of the package and of the requested others.
func (h *hunt) measure(ctx context.Context, extra string) error {
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	h.tests = []string{h.pattern}
	if extra != "" {
		h.tests = append(h.tests, strings.Split(extra, ",")...)
	}
	for _, pattern := range h.tests {
		s, err := measure(ctx, h.root, pattern, h.p.path, filepath.Join(cache, "fencepost-mutants"), h.workers, h.out)
		if err != nil {
			return err
		}
		for _, name := range s.Broken {
			fmt.Fprintf(h.out, "LEFT OUT: %s of %s fails without a mutant\n", name, pattern)
		}
		if len(s.Tests) == 0 {
			return fmt.Errorf("%s has no test that passes", pattern)
		}
		h.suites = append(h.suites, s)
	}
	return nil
}

// run tries mutants in their order until n of them have been counted. What is
// counted depends only on the order, not on which worker is quicker.
func (h *hunt) run(ctx context.Context, chosen []mutant, n int) error {
	if n <= 0 {
		n = len(chosen)
	}
	for first := 0; first < len(chosen) && h.counted < n && ctx.Err() == nil; {
		// Only as many as are missing, so that none is superfluous.
		batch := chosen[first:min(len(chosen), first+n-h.counted)]
		first += len(batch)
		errs := make([]error, len(batch))
		each(len(batch), h.workers, func(i int) { errs[i] = h.try(ctx, batch[i]) })
		for _, err := range errs {
			if err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

func (h *hunt) describe(m mutant) string {
	rel, err := filepath.Rel(h.root, filepath.Join(h.p.dir, m.file))
	if err != nil {
		rel = m.file
	}
	where := fmt.Sprintf("%s:%d", filepath.ToSlash(rel), h.p.line(m))
	if m.function != "" {
		where += " " + m.function
	}
	return where + ": " + m.operator + "\n" + indent(h.p.diff(m))
}

func indent(text string) string {
	return "    " + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n    ")
}

// invalidSQL matches the errors of an invalid statement, as drivers print their
// SQLSTATE.
var invalidSQL = regexp.MustCompile(`SQLSTATE (42601|42703|42702|42883|42804|42803|42P02|42P10|42P13|42P17|42846|22P02)|syntax error at`)

// try decides about one mutant.
func (h *hunt) try(ctx context.Context, m mutant) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.p.compiles(m) { // the importer is not safe for concurrent use
		h.uncompiled++
		return nil
	}
	if _, ok := h.isKnown(m); ok {
		h.knownEquivalent++
		return nil
	}
	h.mu.Unlock()
	verdict, note, err := h.verdict(ctx, m)
	h.mu.Lock()
	if err != nil || ctx.Err() != nil {
		return err
	}
	switch verdict {
	case "uncompiled":
		h.uncompiled++
		return nil
	case "timed out":
		h.timedOut++
		h.killed++
	case "killed":
		h.killed++
	case "survived":
		h.survived++
		fmt.Fprintf(h.out, "SURVIVED %d %s\n    %s\n    again: go run ./internal/mutants -seed %d -only %d %s\n", m.index, h.describe(m), note, h.seed, m.index, h.pattern)
	}
	h.counted++
	return nil
}

// least is the time that a mutant's tests get on top of twenty times their time
// without it.
var least = 20 * time.Second

// verdict builds the mutant and runs the tests that may notice it, the quick
// ones first.
func (h *hunt) verdict(ctx context.Context, m mutant) (verdict, note string, err error) {
	dir, err := os.MkdirTemp("", "fencepost-mutant-")
	if err != nil {
		return "", "", err
	}
	defer os.RemoveAll(dir)
	overlay, err := writeOverlay(dir, map[string]string{filepath.Join(h.p.dir, m.file): h.p.apply(m)})
	if err != nil {
		return "", "", err
	}
	ran := 0
	for i, s := range h.suites {
		tests := s.covering(h.p.anchors(m), h.p.body)
		if len(tests) == 0 {
			continue
		}
		ran += len(tests)
		binary := filepath.Join(dir, fmt.Sprintf("%d.test", i))
		// Without symbols a test binary is linked in half the time.
		if out, err := goCommand(ctx, h.root, "test", "-c", "-vet=off", "-ldflags=-s -w", "-overlay="+overlay, "-o", binary, h.tests[i]); err != nil {
			if ctx.Err() != nil || !regexp.MustCompile(`(?m)^\S+\.(go|sql):[0-9]+|^# `).Match(out) {
				return "", "", fmt.Errorf("go test -c: %w\n%s", err, out)
			}
			return "uncompiled", "", nil
		}
		for len(tests) > 0 {
			names, seconds := quickest(tests)
			tests = tests[len(names):]
			limit := least + time.Duration(20*seconds*float64(time.Second))
			r := runTests(ctx, s.Dir, binary, names, limit.Round(time.Second))
			switch {
			case ctx.Err() != nil:
				return "", "", ctx.Err()
			case r.timedOut:
				return "timed out", "", nil
			case r.err != nil && m.sql && invalidSQL.Match(r.output):
				return "uncompiled", "", nil
			case r.err != nil:
				return "killed", "", nil
			}
		}
	}
	if ran == 0 {
		return "survived", "no test runs this line", nil
	}
	return "survived", fmt.Sprintf("%d tests that run it pass", ran), nil
}

// quickest returns the first of the tests, up to five seconds of them, and at
// least a fifth of the rest.
func quickest(tests []testRun) (names []string, seconds float64) {
	for i, t := range tests {
		if i > 0 && seconds+t.Seconds > 5 && i >= (len(tests)+4)/5 {
			break
		}
		names = append(names, t.Name)
		seconds += t.Seconds
	}
	return names, seconds
}

func (h *hunt) summary(took time.Duration) {
	fmt.Fprintf(h.out, "%d mutants of %s, %d killed, %d survived, %d timed out (counted as killed); seed %d, %d s\n",
		h.counted, h.pattern, h.killed, h.survived, h.timedOut, h.seed, int(took.Seconds()))
	fmt.Fprintf(h.out, "not counted: %d do not compile, %d are known to be equivalent\n", h.uncompiled, h.knownEquivalent)
	for _, e := range h.known {
		if e.seen {
			fmt.Fprintf(h.out, "  equivalent in %s: %s\n", e.function, e.reason)
		}
	}
}
