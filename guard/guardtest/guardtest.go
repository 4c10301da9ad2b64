package guardtest

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"runtime/debug"
	"slices"
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

	// Rounds is how many calls each of eight racing callers makes; 0 means 40. The random
	// sequence has eight times as many calls. Sixty times as many claims are admitted in
	// the case that checks that a store with many marks forgets none: give a store that is
	// bounded on purpose a bound above it.
	Rounds int

	// Margin is how far a store's clock may be from the test's, including its
	// resolution. The cases of Retire sleep that long on either side of the
	// time they give, some forty times in all. 0 means 20 ms, the coarsest
	// clock tick in use.
	Margin time.Duration

	// Seed makes the random choices repeatable; 0 means a new seed each time.
	// It does not repeat a race that depends on scheduling.
	Seed uint64
}

// Failure is one case that a store failed. It is an error.
type Failure struct {
	// Case is the name of the case, "P1/lower-token-is-stale".
	Case string
	// Seed repeats the random choices when given as [Harness.Seed].
	Seed uint64
	// Err says what was done, what happened and what was wanted.
	Err error
}

// Error gives the case, what happened and the seed.
func (f Failure) Error() string { return fmt.Sprintf("%s: %v\n\tseed %d", f.Case, f.Err, f.Seed) }

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
			if err := c.check(t.Context(), h); err != nil {
				t.Error(Failure{c.name, h.Seed, err})
			}
		})
	}
}

// Check runs the suite and returns the cases that failed, in their order. An
// unusable harness is reported as one failure of the case "harness".
func Check(ctx context.Context, h Harness) []Failure {
	h, err := h.withDefaults()
	if err != nil {
		return []Failure{{Case: "harness", Err: err}}
	}
	var out []Failure
	for _, c := range cases() {
		if c.lacks(h) != "" {
			continue
		}
		if err := c.check(ctx, h); err != nil {
			out = append(out, Failure{c.name, h.Seed, err})
		}
	}
	return out
}

func (h Harness) withDefaults() (Harness, error) {
	switch {
	case h.New == nil:
		return h, errors.New("guardtest: Harness.New is required")
	case h.Rounds < 0:
		return h, fmt.Errorf("guardtest: Harness.Rounds is %d, must not be negative", h.Rounds)
	case h.Margin < 0:
		return h, fmt.Errorf("guardtest: Harness.Margin is %v, must not be negative", h.Margin)
	}
	if h.Rounds == 0 {
		h.Rounds = 40
	}
	if h.Margin == 0 {
		h.Margin = 20 * time.Millisecond
	}
	if h.Seed == 0 {
		h.Seed = rand.Uint64()
	}
	return h, nil
}

// limit ends a case that hangs. No case needs it, even on a slow machine.
const limit = 5 * time.Minute

// testCase is one case. It returns its finding instead of failing a
// testing.T, so that the suite itself can be tested on broken stores.
type testCase struct {
	name  string // promise/what-is-so
	needs capability
	run   step
}

type capability uint8

const (
	nothing capability = iota
	replica
	reopen
)

// cases returns the suite.
func cases() []testCase { return slices.Concat(scripts, races) }

// lacks returns the field of Harness that c needs and h does not set.
func (c testCase) lacks(h Harness) string {
	switch {
	case c.needs == replica && h.Replica == nil:
		return "Replica"
	case c.needs == reopen && h.Reopen == nil:
		return "Reopen"
	}
	return ""
}

// check runs c on a fresh store.
func (c testCase) check(ctx context.Context, h Harness) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- c.checked(ctx, h) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-done:
		return err
	case <-time.After(2 * time.Second): // the goroutine and its store are abandoned
		return fmt.Errorf("did not return when its context ended: %w", context.Cause(ctx))
	}
}

func (c testCase) checked(ctx context.Context, h Harness) error {
	e := &env{Harness: h, name: c.name, model: model{marks: map[string]modelMark{}}}
	err := recovered(func() error {
		if err := e.open(ctx, c.needs != reopen); err != nil {
			return err
		}
		return c.run(ctx, e)
	})
	return errors.Join(err, recovered(e.close))
}

// env is what a case works with.
type env struct {
	Harness
	name    string
	model   model
	handles []guard.Store // the store from New or Reopen, then its replica
	calls   int           // the calls of a script take the handles in turn
	cut     time.Time     // the latest cut
}

// open opens the store and, unless the case reopens it, its replica.
func (e *env) open(ctx context.Context, replicas bool) error {
	s, err := e.New(ctx)
	if err != nil {
		return fmt.Errorf("Harness.New: %w", err)
	}
	e.handles = append(e.handles, s)
	if e.Replica == nil || !replicas {
		return nil
	}
	r, err := e.Replica(ctx, s)
	if err != nil {
		return fmt.Errorf("Harness.Replica: %w", err)
	}
	e.handles = append(e.handles, r)
	return nil
}

func (e *env) close() error {
	if e.Close == nil {
		return nil
	}
	var errs []error
	for _, s := range slices.Backward(e.handles) {
		if err := e.Close(s); err != nil {
			errs = append(errs, fmt.Errorf("Harness.Close: %w", err))
		}
	}
	return errors.Join(errs...)
}

// handle deals the handles out in turn.
func (e *env) handle(i int) guard.Store { return e.handles[i%len(e.handles)] }

// rand returns the random numbers of the i-th caller in this case.
func (e *env) rand(i int) *rand.Rand {
	h := fnv.New64a()
	h.Write([]byte(e.name))
	return rand.New(rand.NewPCG(e.Seed, h.Sum64()+uint64(i)))
}

// recovered turns a panic into an error: one broken method must not hide what
// the other cases find.
func recovered(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return f()
}

// sleep waits for d or the end of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
