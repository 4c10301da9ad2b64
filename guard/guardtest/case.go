package guardtest

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

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

// promise is what the name of c begins with.
func (c testCase) promise() Promise {
	promise, _, _ := strings.Cut(c.name, "/")
	return Promise(promise)
}

// cases returns the suite.
func cases() []testCase { return slices.Concat(sequences, races, modelCases) }

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
func (c testCase) check(ctx context.Context, h Harness) *Failure {
	ctx, cancel := context.WithTimeout(ctx, h.Timeout)
	defer cancel()
	grace := min(h.Timeout, 2*time.Second) // to notice the end of the context
	done := make(chan error, 1)
	go func() { done <- c.checked(ctx, h) }()
	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
		select {
		case err = <-done:
		case <-time.After(grace): // the goroutine and its store are abandoned
			err = fmt.Errorf("did not return within %v of the end of its context: %w", grace, context.Cause(ctx))
		}
	}
	if err == nil {
		return nil
	}
	return &Failure{Case: c.name, Promise: c.promise(), Seed: h.Seed, Err: err}
}

func (c testCase) checked(ctx context.Context, h Harness) error {
	e := &env{Harness: h, stream: hash(c.name)}
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
	stream  uint64
	handles []guard.Store // the store from New or Reopen, then its replica
	first   int           // which of them is store
	before  time.Time     // the latest cut
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

// store returns the first handle, for cases with a single caller.
func (e *env) store() guard.Store { return e.handle(e.first) }

// handle deals the handles out to racing callers in turn.
func (e *env) handle(i int) guard.Store {
	return watched{e.handles[i%len(e.handles)], e.handles[(i+1)%len(e.handles)]}
}

// watched looks at every admission of every case: the mark that is read after it,
// through the other handle if there is one, is the claim's or above it.
type watched struct {
	guard.Store
	other guard.Store
}

func (w watched) Admit(ctx context.Context, c guard.Claim) (guard.Mark, error) {
	mark, err := w.Store.Admit(ctx, c)
	if err != nil {
		return mark, err
	}
	got, err := w.other.Mark(context.WithoutCancel(ctx), c.Resource) // ctx may end halfway
	if err != nil {
		return mark, fmt.Errorf("%w: it was admitted, and then its mark could not be read: %v", errForgotten, err)
	}
	if got.Token < c.Token || got.Token == c.Token && !got.Floor && got.LeaseID != c.LeaseID {
		err = fmt.Errorf("%w: it was admitted, and then %s has %s", errForgotten, quote(c.Resource), showMark(got))
	}
	return mark, err
}

var errForgotten = errors.New("an admission left no mark")

// rand returns the random numbers of the i-th caller in this case.
func (e *env) rand(i int) *rand.Rand { return rand.New(rand.NewPCG(e.Seed, e.stream+uint64(i))) }

// race runs n callers that start together and returns their errors. The first
// error ends the context of the others.
func (e *env) race(ctx context.Context, n int, call func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		wg    sync.WaitGroup
		start = make(chan struct{})
		once  sync.Once
		first error
	)
	for i := range n {
		wg.Go(func() {
			<-start
			if err := recovered(func() error { return call(ctx, i) }); err != nil {
				once.Do(func() { first = err }) // the others' errors may only follow from the cancel
				cancel()
			}
		})
	}
	close(start)
	wg.Wait()
	return first
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

func hash(s string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(s))
	return h.Sum64()
}

// sleep waits for d or the end of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
