// Package pause waits between two attempts, and for a response after its time.
package pause

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

const (
	first = 5 * time.Millisecond
	// Last is the longest pause of somebody who waits.
	Last = 250 * time.Millisecond
	// Grace is how long an attempt may go on after its caller's context ended. The
	// response is nearly always in flight; waiting for it makes the outcome known and
	// saves the connection, which a driver would have to close.
	Grace = 100 * time.Millisecond
)

// For waits; false if ctx ended or closed was closed first.
func For(ctx context.Context, d time.Duration, closed <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
	case <-closed:
	}
	return false
}

// Backoff doubles from 5 ms to longest, less up to half at random.
func Backoff(attempt int, longest time.Duration) time.Duration {
	return Jitter(min(longest, first<<min(attempt, 20)), 2)
}

// Jitter subtracts up to one share-th of d at random.
func Jitter(d time.Duration, share int64) time.Duration {
	return d - time.Duration(rand.Int64N(int64(d)/share+1))
}

// WithCause adds the cause of the end of ctx, unless err already wraps it.
func WithCause(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	if err == nil || cause == nil || errors.Is(err, cause) {
		return err
	}
	return fmt.Errorf("%w: %w", err, cause)
}
