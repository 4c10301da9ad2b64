package leasetest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
)

// Recorder keeps events and log lines.
type Recorder struct {
	mu     sync.Mutex
	events []guard.Event
	log    bytes.Buffer
}

// Observe implements guard.Observer.
func (r *Recorder) Observe(_ context.Context, e guard.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

// Write implements io.Writer.
func (r *Recorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.Write(p)
}

// Take returns what was recorded and forgets it.
func (r *Recorder) Take(t testing.TB) (events []guard.Event, lines []map[string]any) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	events, r.events = r.events, nil
	for dec := json.NewDecoder(&r.log); ; {
		var line map[string]any
		if err := dec.Decode(&line); err == io.EOF {
			return events, lines
		} else if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, line)
	}
}

// Count returns how often the log contains what.
func (r *Recorder) Count(what string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return bytes.Count(r.log.Bytes(), []byte(what))
}

// Text returns the log.
func (r *Recorder) Text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.String()
}

// Tally counts events, by operation and by whether they failed.
type Tally struct {
	mu sync.Mutex
	n  map[string]int
}

// Observe implements guard.Observer.
func (y *Tally) Observe(_ context.Context, e guard.Event) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.n == nil {
		y.n = map[string]int{}
	}
	name := string(e.Op)
	if e.Err != nil {
		name += " failed"
	}
	y.n[name]++
}

// Text returns the counts, sorted by operation: "acquire 2, acquire failed 1".
func (y *Tally) Text() string {
	y.mu.Lock()
	defer y.mu.Unlock()
	var all []string
	for name, n := range y.n {
		all = append(all, fmt.Sprint(name, " ", n))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// Count returns how many operations succeeded.
func (y *Tally) Count(op guard.Op) int {
	y.mu.Lock()
	defer y.mu.Unlock()
	return y.n[string(op)]
}

// Failed returns how many operations failed.
func (y *Tally) Failed(op guard.Op) int {
	y.mu.Lock()
	defer y.mu.Unlock()
	return y.n[string(op)+" failed"]
}
