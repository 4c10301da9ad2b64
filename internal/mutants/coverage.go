package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// span is a block of code as the cover tool reports it.
type span struct {
	File                 string
	Line, Col, End, EndC int
}

func (s span) holds(at place) bool {
	after := at.line > s.Line || at.line == s.Line && at.col >= s.Col
	before := at.line < s.End || at.line == s.End && at.col < s.EndC
	return s.File == at.file && after && before
}

// testRun is one test of a package: how long it takes and which parts of the
// mutated package it runs.
type testRun struct {
	Name    string
	Seconds float64
	Covers  []int // indices into testSuite.Spans
}

// testSuite are the tests of one package.
type testSuite struct {
	Dir    string
	Spans  []span // all blocks of the mutated package
	Tests  []testRun
	Broken []string // fail without a mutant, so they prove nothing
}

// measure runs every test of a package by itself and notes what it covers. It
// keeps the result until one of the test binary's sources changes.
func measure(ctx context.Context, root, pattern, mutated, cache string, workers int, progress io.Writer) (*testSuite, error) {
	key, dir, err := fingerprint(ctx, root, pattern, mutated)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(cache, key+".json")
	if b, err := os.ReadFile(file); err == nil {
		var s testSuite
		if json.Unmarshal(b, &s) == nil {
			s.Dir = dir
			return &s, nil
		}
	}
	tmp, err := os.MkdirTemp("", "fencepost-mutants-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	binary := filepath.Join(tmp, "covered.test")
	if out, err := goCommand(ctx, root, "test", "-c", "-vet=off", "-covermode=set", "-coverpkg="+mutated, "-o", binary, pattern); err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", pattern, err, out)
	}
	names, err := testNames(ctx, dir, binary)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(progress, "measuring what each of the %d tests of %s runs\n", len(names), pattern)
	s := &testSuite{Dir: dir, Tests: make([]testRun, len(names))}
	covered := make([]map[span]bool, len(names))
	each(len(names), workers, func(i int) {
		profile := filepath.Join(tmp, fmt.Sprintf("%d.out", i))
		began := time.Now()
		r := runTests(ctx, dir, binary, []string{names[i]}, 15*time.Minute, "-test.coverprofile="+profile)
		s.Tests[i] = testRun{Name: names[i], Seconds: time.Since(began).Seconds()}
		if r.err == nil {
			covered[i], _ = readProfile(profile)
		}
	})
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	index := map[span]int{}
	for _, c := range covered {
		for b := range c {
			if _, ok := index[b]; !ok {
				index[b] = len(s.Spans)
				s.Spans = append(s.Spans, b)
			}
		}
	}
	for i, c := range covered {
		if c == nil {
			s.Broken = append(s.Broken, names[i])
			continue
		}
		for b, hit := range c {
			if hit {
				s.Tests[i].Covers = append(s.Tests[i].Covers, index[b])
			}
		}
		slices.Sort(s.Tests[i].Covers)
	}
	s.Tests = slices.DeleteFunc(s.Tests, func(t testRun) bool { return slices.Contains(s.Broken, t.Name) })
	if len(s.Broken) == 0 { // else the next run tries again
		encoded, err := json.Marshal(s)
		if err != nil {
			return nil, err
		}
		if err := os.MkdirAll(cache, 0o700); err == nil {
			_ = os.WriteFile(file, encoded, 0o600)
		}
	}
	return s, nil
}

// each calls do for 0 to n-1 with the given number of workers.
func each(n, workers int, do func(int)) {
	var next atomic.Int64
	var group sync.WaitGroup
	for range max(1, workers) {
		group.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				do(i)
			}
		})
	}
	group.Wait()
}

// fingerprint is a hash of all the files of this module that a package's tests
// are built from, and the package's directory.
func fingerprint(ctx context.Context, root, pattern, mutated string) (key, dir string, err error) {
	self, err := goList(ctx, root, "-json=Dir", pattern)
	if err != nil {
		return "", "", err
	}
	if len(self) != 1 {
		return "", "", fmt.Errorf("%s is %d packages, not one", pattern, len(self))
	}
	all, err := goList(ctx, root, "-deps", "-test", "-json=Dir,ImportPath,GoFiles,EmbedFiles,TestGoFiles,XTestGoFiles,TestEmbedFiles,Standard,Module", pattern)
	if err != nil {
		return "", "", err
	}
	files := map[string]bool{}
	for _, l := range all {
		if l.Standard || l.Module == nil || !l.Module.Main {
			continue
		}
		for _, list := range [][]string{l.GoFiles, l.EmbedFiles, l.TestGoFiles, l.XTestGoFiles, l.TestEmbedFiles} {
			for _, name := range list {
				if !filepath.IsAbs(name) { // else made by the go command
					files[filepath.Join(l.Dir, name)] = true
				}
			}
		}
	}
	h := sha256.New()
	fmt.Fprintln(h, runtime.Version(), pattern, mutated)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		b, err := os.ReadFile(name)
		if err != nil {
			return "", "", err
		}
		fmt.Fprintf(h, "%s %d\n%s", strings.TrimPrefix(name, root), len(b), b)
	}
	return hex.EncodeToString(h.Sum(nil)[:16]), self[0].Dir, nil
}

func testNames(ctx context.Context, dir, binary string) ([]string, error) {
	cmd := exec.CommandContext(ctx, binary, "-test.list=.*")
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("-test.list: %w: %s", err, out)
	}
	return regexp.MustCompile(`(?m)^(?:Test|Example|Fuzz)\w*$`).FindAllString(string(out), -1), nil
}

func readProfile(file string) (map[span]bool, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	out := map[span]bool{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		name, rest, ok := strings.Cut(lines.Text(), ".go:")
		if !ok {
			continue
		}
		s := span{File: path.Base(name) + ".go"}
		var statements, count int
		if _, err := fmt.Sscanf(rest, "%d.%d,%d.%d %d %d", &s.Line, &s.Col, &s.End, &s.EndC, &statements, &count); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		out[s] = out[s] || count > 0
	}
	return out, lines.Err()
}

// covering returns the tests that run one of the places, the quickest first.
// For a place in no block (such as the expression of a case), it returns the
// tests that run any part of its function.
func (s *testSuite) covering(places []place, body func(place) (from, to place)) []testRun {
	if places == nil {
		return s.sorted(s.Tests)
	}
	wanted := map[int]bool{}
	for _, at := range places {
		inner := -1
		for i, b := range s.Spans {
			if b.holds(at) && (inner < 0 || s.Spans[inner].holds(place{b.File, b.Line, b.Col})) {
				inner = i
			}
		}
		if inner >= 0 {
			wanted[inner] = true
			continue
		}
		from, to := body(at)
		for i, b := range s.Spans {
			if b.File == at.file && b.Line >= from.line && b.End <= to.line {
				wanted[i] = true
			}
		}
	}
	var out []testRun
	for _, t := range s.Tests {
		if slices.ContainsFunc(t.Covers, func(i int) bool { return wanted[i] }) {
			out = append(out, t)
		}
	}
	return s.sorted(out)
}

func (s *testSuite) sorted(tests []testRun) []testRun {
	tests = slices.Clone(tests)
	slices.SortStableFunc(tests, func(a, b testRun) int {
		if a.Seconds < b.Seconds {
			return -1
		} else if a.Seconds > b.Seconds {
			return 1
		}
		return strings.Compare(a.Name, b.Name)
	})
	return tests
}

// testResult is the output of a test binary.
type testResult struct {
	err      error
	output   []byte
	timedOut bool
}

// runTests runs tests of a binary, and kills what they started if they take
// longer than limit.
func runTests(ctx context.Context, dir, binary string, names []string, limit time.Duration, flags ...string) testResult {
	ctx, cancel := context.WithTimeout(ctx, limit+30*time.Second)
	defer cancel()
	args := append([]string{"-test.run=^(" + strings.Join(names, "|") + ")$", "-test.failfast", "-test.timeout=" + limit.String()}, flags...)
	out, err := ended(ctx, dir, binary, args...)
	timedOut := ctx.Err() != nil || strings.Contains(string(out), "panic: test timed out after ")
	return testResult{err, out, err != nil && timedOut}
}

// goCommand runs the go command.
func goCommand(ctx context.Context, dir string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Minute)
	defer cancel()
	return ended(ctx, dir, "go", args...)
}

// ended runs a program in a process group of its own, so that its children end
// with it.
func ended(ctx context.Context, dir, program string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second
	out, err := cmd.CombinedOutput()
	if errors.Is(err, exec.ErrWaitDelay) { // something still holds the pipe
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	return out, err
}
