// Package testkit holds what tests wait with and where they log to.
//
// No test's verdict depends on the machine's speed. A test orders its steps by what it
// can see (a channel, a server's own state), and Patience only ends a hang.
package testkit

import (
	"io"
	"log"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Patience is how long a test waits for what must happen. It is longer than any
// machine needs, so that only a hang reaches it.
const Patience = 5 * time.Minute

// Eventually waits until reached returns true, and fails the test after Patience.
// what ends the sentence "waited for".
func Eventually(t testing.TB, what string, reached func() bool) {
	t.Helper()
	for end := time.Now().Add(Patience); !reached(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %v for %s", Patience, what)
		}
	}
}

// Receive returns the next value of a channel, or the zero value of a closed one, and
// fails the test after Patience. It must run in the test's own goroutine.
func Receive[T any](t testing.TB, what string, from <-chan T) T {
	t.Helper()
	hang := time.NewTimer(Patience)
	defer hang.Stop()
	select {
	case v := <-from:
		return v
	case <-hang.C:
		t.Fatalf("waited %v for %s", Patience, what)
		return *new(T)
	}
}

// Must ends the test if err is not nil. It must run in the test's own goroutine.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Check fails the test if err is not nil, and lets it go on.
func Check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// Bubble runs f as a subtest in a bubble of its own.
func Bubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

// Logger returns a logger whose lines are shown under the test, if it fails. What is logged
// after the test, such as the end of a lease that it did not release, is dropped.
func Logger(t testing.TB) *slog.Logger {
	w := &output{to: t.Output()}
	t.Cleanup(w.end)
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// output is a test's output until the test has ended; to write to it later panics.
type output struct {
	mu sync.Mutex
	to io.Writer // nil after the test
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.to == nil {
		return len(p), nil
	}
	return o.to.Write(p)
}

func (o *output) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.to = nil
}

// CaptureDefault has the default loggers of log and slog write to the test's output until
// it ends. Tests that use it do not run in parallel.
func CaptureDefault(t testing.TB) {
	logger, writer, flags := slog.Default(), log.Writer(), log.Flags()
	slog.SetDefault(Logger(t))
	t.Cleanup(func() {
		slog.SetDefault(logger)
		log.SetOutput(writer)
		log.SetFlags(flags)
	})
}
