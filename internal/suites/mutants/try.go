package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// goTest runs tests of a package on the repository with some files replaced,
// whose content is keyed by their names.
func goTest(ctx context.Context, root, pkg, tests string, replaced map[string]string, flags ...string) ([]byte, error) {
	// Without symbols the test binaries are linked in half the time.
	args := append([]string{"test", "-timeout=10m", "-vet=off", "-ldflags=-s -w", "-run=" + tests}, flags...)
	return withOverlay(ctx, root, replaced, append(args, "./"+filepath.ToSlash(pkg))...)
}

// withOverlay runs the go command with some files replaced. The tree is not
// changed.
func withOverlay(ctx context.Context, dir string, replaced map[string]string, args ...string) ([]byte, error) {
	tmp, err := os.MkdirTemp("", "fencepost-mutant-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	overlay := map[string]string{}
	for file, text := range replaced {
		name := filepath.Join(tmp, strings.ReplaceAll(file, string(filepath.Separator), "_"))
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			return nil, err
		}
		overlay[file] = name
	}
	encoded, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		return nil, err
	}
	file := filepath.Join(tmp, "overlay.json")
	if err := os.WriteFile(file, encoded, 0o600); err != nil {
		return nil, err
	}
	return goCommand(ctx, dir, append([]string{args[0], "-overlay=" + file}, args[1:]...)...)
}

// goCommand runs the go command in a process group of its own, so that what it
// starts ends with it.
func goCommand(ctx context.Context, dir string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", args...)
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

var failed = regexp.MustCompile(`(?m)^--- FAIL: (\S+)`)

// failures returns the tests that failed in a run of go test with the error err.
// It tells them from tests that did not run, which say nothing.
func failures(ctx context.Context, out []byte, err error) (tests []string, _ error) {
	var exit *exec.ExitError
	text := string(out)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err == nil:
		return nil, nil
	case !errors.As(err, &exit):
		return nil, err
	case strings.Contains(text, "[build failed]") || strings.Contains(text, "[setup failed]"):
		return nil, fmt.Errorf("it does not compile: %s", last(text))
	}
	for _, m := range failed.FindAllStringSubmatch(text, -1) {
		tests = append(tests, m[1])
	}
	if tests == nil {
		return nil, fmt.Errorf("no test failed, but go test did: %s", last(text))
	}
	return tests, nil
}

func last(text string) string {
	text = strings.TrimSpace(text)
	return text[max(0, len(text)-600):]
}
