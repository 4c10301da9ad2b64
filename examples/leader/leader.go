package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient"
)

// lead runs work whenever this process is the leader, until ctx ends; then it
// gives the lease back, so that the next leader need not wait for the TTL. work
// must return soon after its context has ended, and present the claim in it with
// every write. lead returns guard.ErrStale if new tokens are refused as stale: the
// mark is ahead of the issuer, for example after a restore, and an operator has to
// act.
func lead(ctx context.Context, client *lockclient.Client, name string, work func(context.Context) error) error {
	stale, pause := 0, time.Second
	for {
		start := time.Now()
		err := client.Hold(ctx, name, &lockclient.HoldOptions{TTL: time.Minute}, work)
		if time.Since(start) > time.Minute {
			stale, pause = 0, time.Second // it went well for a while
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, lockclient.ErrLeaseLost):
			continue // another worker leads: queue again
		case errors.Is(err, guard.ErrStale):
			if stale++; stale == 5 {
				return err
			}
		case errors.Is(err, guard.ErrUnavailable), errors.Is(err, guard.ErrOutcomeUnknown):
			// What work needs is unavailable. While the issuer is, Hold waits.
		default:
			return err
		}
		select {
		case <-time.After(pause + rand.N(pause/2)): // not all workers at once
		case <-ctx.Done():
			return nil
		}
		pause = min(2*pause, 10*time.Second)
	}
}
