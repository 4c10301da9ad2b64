package main

import (
	"context"
	"errors"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient"
)

// lead runs work whenever this process is the leader, until ctx ends; then it
// gives the lease back, so that the next leader need not wait for the TTL. work
// must return soon after its context has ended, and present the claim in it with
// every write.
func lead(ctx context.Context, client *lockclient.Client, name string, work func(context.Context) error) error {
	for {
		err := client.Hold(ctx, name, &lockclient.HoldOptions{TTL: time.Minute}, work)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, guard.ErrStale), errors.Is(err, lockclient.ErrLeaseLost):
			// Another worker leads. Queue again.
		case errors.Is(err, guard.ErrUnavailable), errors.Is(err, guard.ErrOutcomeUnknown):
			select { // the issuer or the database is unavailable
			case <-time.After(time.Second):
			case <-ctx.Done():
				return nil
			}
		default:
			return err
		}
	}
}
