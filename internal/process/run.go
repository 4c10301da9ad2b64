package process

import (
	"fmt"
	"os"
	"slices"
)

// TB is what the servers need of a test; [Run] is one for a program.
type TB interface {
	Helper()
	Cleanup(f func())
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	TempDir() string
}

// Run starts servers for a program, which calls Close at its end.
type Run struct{ cleanups []func() }

// Helper does nothing.
func (r *Run) Helper() {}

// Cleanup makes Close call f.
func (r *Run) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }

// Fatal ends the program.
func (r *Run) Fatal(args ...any) {
	fmt.Fprintln(os.Stderr, args...)
	r.Close()
	os.Exit(1)
}

// Fatalf ends the program.
func (r *Run) Fatalf(format string, args ...any) { r.Fatal(fmt.Sprintf(format, args...)) }

// TempDir returns a new directory, which Close deletes.
func (r *Run) TempDir() string {
	dir, err := os.MkdirTemp("", "fencepost-")
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// Close ends the servers and deletes what they wrote.
func (r *Run) Close() {
	for len(r.cleanups) > 0 {
		last := len(r.cleanups) - 1
		f := r.cleanups[last]
		r.cleanups = slices.Delete(r.cleanups, last, last+1)
		f()
	}
}
