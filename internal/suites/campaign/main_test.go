package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/fencepost-go/fencepost/internal/testkit"
)

// commandVariable makes the test binary the command, with these arguments.
const commandVariable = "FENCEPOST_CAMPAIGN_COMMAND"

func TestMain(m *testing.M) {
	if encoded := os.Getenv(roleVariable); encoded != "" {
		if err := runRole(encoded); err != nil {
			os.Stderr.WriteString(err.Error())
			os.Exit(5)
		}
		os.Exit(0)
	}
	if args := os.Getenv(commandVariable); args != "" {
		os.Unsetenv(commandVariable)
		ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		code := command(ctx, strings.Fields(args), os.Stdout, os.Stderr)
		cancel()
		os.Exit(code)
	}
	os.Exit(m.Run())
}

func TestBadFlags(t *testing.T) {
	for args, want := range map[string]string{
		"-guards maybe":     `-guards: "maybe"`,
		"-duration 1ms":     "-duration: 1ms",
		"-duration 2h":      "-duration: 2h",
		"-seed x":           "-seed",
		"now":               "unexpected arguments",
		"-artefacts /":      "not empty",
		"-artefacts /dev/x": "/dev/x",
	} {
		var out, errs bytes.Buffer
		if args == "-artefacts /dev/x" {
			args = "-artefacts " + filepath.Join(t.TempDir(), "a\x00b")
			want = "campaign: "
		}
		if code := command(t.Context(), strings.Fields(args), &out, &errs); code != exitInvalid || !strings.Contains(errs.String(), want) {
			t.Errorf("%s: exit %d, %q", args, code, errs.String())
		}
	}
}

// TestRun is a short run: everything starts, works and ends, its files can be
// read, and it goes on until it has shown what it must.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	var out, errs bytes.Buffer
	code := command(t.Context(), []string{"-duration", "3s", "-skew=false", "-artefacts", dir}, &out, &errs)
	if code != exitClean || errs.Len() > 0 {
		t.Fatalf("exit %d: %s%s", code, &out, &errs)
	}
	text, err := os.ReadFile(filepath.Join(dir, "summary.json"))
	var s summary
	if err != nil || json.Unmarshal(text, &s) != nil {
		t.Fatalf("%v: %s", err, text)
	}
	for _, f := range s.Surfaces {
		if f.Acked < floorAcked*3/60 {
			t.Errorf("%s: too little was done: %+v", f.Surface, f)
		}
	}
	if len(s.Surfaces) != len(surfaces) {
		t.Errorf("%+v", s)
	}
	for _, name := range []string{"schedule.jsonl", "log.json", "grants.json"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Size() < 10 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	gone(t, dir)
}

// TestEnds: however the controller ends, nothing stays behind.
func TestEnds(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGKILL} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), commandVariable+"=-duration 60s -skew=false -artefacts "+dir)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer cmd.Process.Kill()
			testkit.Eventually(t, "workers that are active", func() bool { return histories(t, dir) >= len(surfaces) })
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			var exit *exec.ExitError
			if err := cmd.Wait(); !errors.As(err, &exit) || sig == syscall.SIGINT && exit.ExitCode() != exitInvalid {
				t.Errorf("it ended with %v", err)
			}
			gone(t, dir)
		})
	}
}

func histories(t *testing.T, dir string) int {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "history-*.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}

// gone waits until no process has the run's directory in its environment.
func gone(t *testing.T, dir string) {
	t.Helper()
	testkit.Eventually(t, "the end of every process of "+dir, func() bool {
		files, err := filepath.Glob("/proc/[0-9]*/environ")
		if err != nil || len(files) == 0 {
			t.Fatalf("no /proc: %v", err)
		}
		return !slices.ContainsFunc(files, func(f string) bool {
			environ, _ := os.ReadFile(f) // a process may end meanwhile
			return bytes.Contains(environ, []byte(`"dir":"`+dir))
		})
	})
}
