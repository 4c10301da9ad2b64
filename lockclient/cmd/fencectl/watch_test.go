package main

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
)

// Without a terminal --watch prints one picture below the other, without a
// single escape, and JSON with -o json; an interrupt ends it with 0.
func TestWatchWithoutATerminal(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Log("an interrupt cannot be sent to one process there; what is printed is tested")
	}
	url, pool := database(t)
	hold(t, pool, "worker-1", "first", time.Hour)
	for _, format := range []string{"table", "json"} {
		cmd := exec.Command(binary, "show", "first", "--watch", "--interval", "100ms", "-o", format)
		cmd.Env = environment("FENCECTL_DATABASE_URL=" + url)
		var errOut strings.Builder
		cmd.Stderr = &errOut
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		pictures := 0
		for lines := bufio.NewScanner(out); pictures < 3 && lines.Scan(); {
			printable(t, lines.Text())
			switch {
			case format == "json":
				var v view
				if err := json.Unmarshal(lines.Bytes(), &v); err != nil || v.Lease.Resource != "first" {
					t.Errorf("%v: %s", err, lines.Text())
				}
				pictures++
			case strings.HasPrefix(lines.Text(), "so:"):
				pictures++
			}
		}
		if pictures < 3 {
			t.Errorf("%s: %d pictures", format, pictures)
		}
		signal := os.Signal(os.Interrupt)
		if runtime.GOOS == "windows" {
			signal = os.Kill
		}
		if err := cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		err = cmd.Wait()
		if runtime.GOOS != "windows" && (err != nil || errOut.Len() > 0) {
			t.Errorf("%s: %v %s", format, err, errOut.String())
		}
	}
}

// watch shows with each lease who waits for it and what its mark is.
func TestWatchShowsMarks(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	must(t, url, "advance", "behind", "4", "--yes")
	current, behind := hold(t, pool, "worker-1", "current", time.Hour), hold(t, pool, "worker-2", "behind", time.Hour)
	hold(t, pool, "worker-3", "unmarked", time.Hour)
	for _, claim := range []guard.Claim{current.Claim(), {Resource: "behind", Token: behind.Token() - 1, LeaseID: "old"}} {
		if err := fenced(t, pool).Raise(t.Context(), claim); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(binary, "watch", "--interval", "100ms", "-o", "json")
	cmd.Env = environment("FENCECTL_DATABASE_URL=" + url)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	marks := map[string]guard.Token{}
	for lines := bufio.NewScanner(out); len(marks) < 3 && lines.Scan(); {
		var row struct {
			Resource string
			Mark     guard.Mark
		}
		if err := json.Unmarshal(lines.Bytes(), &row); err != nil {
			t.Fatalf("%v: %s", err, lines.Text())
		}
		marks[row.Resource] = row.Mark.Token
	}
	if marks["current"] != current.Token() || marks["behind"] != behind.Token()-1 || marks["unmarked"] != guard.NoToken {
		t.Errorf("marks %v", marks)
	}
	for _, c := range []struct {
		mark guard.Mark
		want string
	}{{guard.Mark{}, "-"}, {guard.Mark{Token: 5, Floor: true}, "-"}, {guard.Mark{Token: 7}, "="}, {guard.Mark{Token: 6}, "6"}} {
		if got := compared(c.mark, 7); got != c.want {
			t.Errorf("%+v beside token 7: %q", c.mark, got)
		}
	}
}

// If the server goes down while somebody watches, watch says so, and asks again
// until it is back.
func TestWatchSurvivesServerOutage(t *testing.T) {
	t.Parallel()
	server, err := pgtest.Start(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Stop() })
	must(t, server.URL(), "migrate")
	hold(t, dial(t, server.URL()), "worker-1", "first", 10*time.Minute)
	cmd := exec.Command(binary, "list", "--watch", "--interval", "100ms", "--timeout", "30s")
	cmd.Env = environment("FENCECTL_DATABASE_URL=" + server.URL())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := time.AfterFunc(3*time.Minute, func() { cmd.Process.Kill() })
	defer ended.Stop()
	lines := bufio.NewScanner(out)
	sees := func(text string) {
		t.Helper()
		for lines.Scan() {
			if strings.Contains(lines.Text(), text) {
				return
			}
		}
		t.Errorf("it ended, and %q was not printed", text)
	}
	sees("worker-1")
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	sees("asking again: ")
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	sees("worker-1")
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
}
