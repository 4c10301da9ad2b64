package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
)

// watching is a command that prints again and again, without a terminal.
type watching struct {
	t         *testing.T
	lines     *bufio.Scanner
	interrupt context.CancelFunc
	ended     chan result
}

func watchIt(t *testing.T, url string, args ...string) *watching {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	from, to := io.Pipe()
	w := &watching{t, bufio.NewScanner(from), cancel, make(chan result, 1)}
	t.Cleanup(func() { cancel(); from.Close() })
	go func() {
		var errOut strings.Builder
		code := run(ctx, onDatabase(url, args), nil, to, &errOut)
		to.Close()
		w.ended <- result{code: code, errOut: errOut.String()}
	}()
	return w
}

// sees reads on until a line has the text.
func (w *watching) sees(text string) string {
	w.t.Helper()
	for w.lines.Scan() {
		if strings.Contains(w.lines.Text(), text) {
			return w.lines.Text()
		}
	}
	w.t.Fatalf("it ended, and %q was not printed", text)
	return ""
}

// Without a terminal --watch prints one picture below the other, without a
// single escape, and JSON with -o json. An interrupt ends it with 0.
func TestWatchWithoutATerminal(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	hold(t, pool, "worker-1", "first", time.Hour)
	for format, line := range map[string]string{"table": "so: ", "json": `"resource":"first"`} {
		w := watchIt(t, url, "show", "first", "--watch", "--interval", "100ms", "-o", format)
		for range 3 {
			seen := w.sees(line)
			printable(t, seen)
			if format == "json" {
				var v view
				if err := json.Unmarshal([]byte(seen), &v); err != nil || v.Lease.Resource != "first" {
					t.Errorf("%v: %s", err, seen)
				}
			}
		}
		w.interrupt()
		for w.lines.Scan() { // what it is printing
		}
		if r := <-w.ended; r.code != exitOK || r.errOut != "" {
			t.Errorf("%s: %+v", format, r)
		}
	}
}

// list --marks shows with each lease what its mark is.
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
	w := watchIt(t, url, "list", "--marks", "--watch", "--interval", "100ms", "-o", "json")
	marks := map[string]guard.Token{}
	for len(marks) < 3 {
		var row struct {
			Resource string
			Mark     guard.Mark
		}
		if err := json.Unmarshal([]byte(w.sees("{")), &row); err != nil {
			t.Fatal(err)
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
	w := watchIt(t, server.URL(), "list", "--watch", "--interval", "100ms", "--timeout", "30s")
	w.sees("worker-1")
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	w.sees("asking again: ")
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.sees("worker-1")
}
