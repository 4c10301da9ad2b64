package guardtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// Harness tells the suite how to open the store under test and what the store
// can do. Only New is required.
type Harness struct {
	// New returns an empty store that shares nothing with any store before it,
	// the floor included. It is called once per case.
	New func(ctx context.Context) (guard.Store, error)

	// Replica returns a second handle on the marks of s, as another process of
	// the same service would hold it. nil means that the store is for a single
	// process.
	Replica func(ctx context.Context, s guard.Store) (guard.Store, error)

	// Reopen ends s, which came from New, as a restart would, and returns the
	// store that the restarted process opens; s is neither used nor closed
	// afterwards. nil means that the store loses its marks at restart.
	Reopen func(ctx context.Context, s guard.Store) (guard.Store, error)

	// Close ends a store that New, Replica or Reopen returned; replicas are
	// closed before the store they replicate. nil means nothing to close.
	Close func(s guard.Store) error

	// Goroutines is how many callers race each other; 0 means 8.
	Goroutines int

	// Operations is how many calls each of them makes in a case; 0 means 40.
	Operations int

	// Steps is the length of the random sequence that is compared with the
	// model; 0 means 300.
	Steps int

	// Volume is how many claims are admitted in the case that checks that a
	// store with many marks forgets none, half of them for new resources; 0 means
	// 2,200. Give a store that is bounded on purpose a bound above it.
	Volume int

	// Margin is how far a store's clock may be from the test's, including its
	// resolution. The cases of Retire sleep that long on either side of the
	// time they give, some forty times in all. 0 means 20 ms, the coarsest
	// clock tick in use.
	Margin time.Duration

	// Timeout ends a case that hangs; 0 means 3 minutes, which no case needs
	// even on a slow machine.
	Timeout time.Duration

	// Seed makes the random choices repeatable; 0 means a new seed each time.
	// It does not repeat a race that depends on scheduling.
	Seed uint64
}

// Failure is one case that a store failed. It is an error.
type Failure struct {
	// Case is the name of the case, "P1/lower-token-is-stale".
	Case string
	// Promise is what was broken.
	Promise Promise
	// Seed repeats the random choices when given as [Harness.Seed].
	Seed uint64
	// Err says what was done, what happened and what was wanted.
	Err error
}

// Error gives what happened, the promise and the seed.
func (f Failure) Error() string {
	return fmt.Sprintf("%s: %v\n\t%s: %s\n\tseed %d", f.Case, f.Err, f.Promise, f.Promise.Sentence(), f.Seed)
}

// Unwrap returns Err.
func (f Failure) Unwrap() error { return f.Err }

// Run runs the suite, each case as a subtest. It fails t at once if the
// harness is unusable.
func Run(t *testing.T, h Harness) {
	t.Helper()
	h, err := h.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range cases() {
		if lacks := c.lacks(h); lacks != "" {
			t.Logf("not asked, because Harness.%s is nil: %s", lacks, c.name)
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			if f := c.check(t.Context(), h); f != nil {
				t.Error(f)
			}
		})
	}
}

// Check runs the suite and returns the cases that failed, in their order. An
// unusable harness is reported as one failure of the case "harness".
func Check(ctx context.Context, h Harness) []Failure {
	h, err := h.withDefaults()
	if err != nil {
		return []Failure{{Case: "harness", Promise: P5, Err: err}}
	}
	var out []Failure
	for _, c := range cases() {
		if c.lacks(h) != "" {
			continue
		}
		if f := c.check(ctx, h); f != nil {
			out = append(out, *f)
		}
	}
	return out
}

func (h Harness) withDefaults() (Harness, error) {
	if h.New == nil {
		return h, errors.New("guardtest: Harness.New is required")
	}
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"Goroutines", int64(h.Goroutines)},
		{"Operations", int64(h.Operations)},
		{"Steps", int64(h.Steps)},
		{"Volume", int64(h.Volume)},
		{"Margin", int64(h.Margin)},
		{"Timeout", int64(h.Timeout)},
	} {
		if f.value < 0 {
			return h, fmt.Errorf("guardtest: Harness.%s is %d, must not be negative", f.name, f.value)
		}
	}
	if h.Goroutines == 1 {
		return h, errors.New("guardtest: Harness.Goroutines is 1, but a race takes two")
	}
	h.Goroutines = orDefault(h.Goroutines, 8)
	h.Operations = orDefault(h.Operations, 40)
	h.Steps = orDefault(h.Steps, 300)
	h.Volume = orDefault(h.Volume, 2200)
	h.Margin = orDefault(h.Margin, 20*time.Millisecond)
	h.Timeout = orDefault(h.Timeout, 3*time.Minute)
	h.Seed = orDefault(h.Seed, rand.Uint64())
	return h, nil
}

func orDefault[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}
