package locktest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/locktest"
)

// closeBooks stands for the code under test.
func closeBooks(ctx context.Context, client *lockclient.Client, step func()) error {
	return client.Hold(ctx, "close:2026-04", &lockclient.AcquireOptions{TTL: time.Minute}, func(ctx context.Context) error {
		step()
		<-ctx.Done()
		return context.Cause(ctx)
	})
}

// A holder whose lease is taken from it notices at its next renewal.
func Example() {
	var t testing.T // a test has its own
	client, server := locktest.New(&t, nil)
	defer client.Close(context.Background())
	var thief guard.Claim
	err := closeBooks(context.Background(), client, func() {
		thief = server.Steal("close:2026-04", "somebody else", time.Hour)
		server.Advance(25 * time.Second) // a renewal is due
	})
	fmt.Println(errors.Is(err, lockclient.ErrLeaseLost), "the thief has token", thief.Token)
	// Output:
	// true the thief has token 2
}
