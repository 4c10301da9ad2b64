package lockclient_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/driver/memory"
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
		err := client.Hold(ctx, name, &lockclient.AcquireOptions{TTL: time.Minute}, work)
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

// Leader election, as controllers do it, is Hold in a loop. A leader that loses its lease stops,
// and every candidate waits again. What a leader writes still needs a fence: one that was paused
// believes that it leads.
func ExampleClient_Hold_leaderElection() {
	ctx, cancel := context.WithCancel(context.Background())
	server := memory.NewServer() // in place of PostgreSQL
	table := guard.NewMemory()   // in place of what the leader writes to
	write := func(claim guard.Claim) {
		_, err := table.Admit(ctx, claim)
		fmt.Println("write under token", claim.Token, err)
	}
	elected := make(chan guard.Claim)
	var candidates sync.WaitGroup
	for _, name := range []string{"worker-1", "worker-2"} {
		client := guard.Must(lockclient.New(server.Issuer(), name, nil))
		defer client.Close(context.Background())
		candidates.Go(func() {
			err := lead(ctx, client, "scheduler:leader", func(ctx context.Context) error {
				claim, _ := guard.ClaimFrom(ctx)
				elected <- claim
				<-ctx.Done() // the leader's work would be here
				return context.Cause(ctx)
			})
			if err != nil {
				fmt.Println(name, err)
			}
		})
	}
	first := <-elected
	write(first)
	server.Expire("scheduler:leader") // the leader is paused for longer than its lease
	second := <-elected
	write(second)
	write(first) // it goes on before it notices
	cancel()
	candidates.Wait()
	// Output:
	// write under token 1 <nil>
	// write under token 2 <nil>
	// write under token 1 fencepost: stale fencing token: token 1 for "scheduler:leader", the mark is 2
}
