package lockclient_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/fencepost-go/fencepost/lockclient"
)

// A resource whose tokens came from another system so far goes on above them,
// and after a restore that the server cannot see all tokens go into a new epoch.
func ExampleClient_Advance() {
	ctx := context.Background()
	pool, cleanup := database(ctx)
	defer cleanup()
	if err := lockclient.Migrate(ctx, pool); err != nil {
		log.Fatal(err)
	}
	client, err := lockclient.New(pool, "operator", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	acquire := func() {
		lease, err := client.TryAcquire(ctx, "billing-close", &lockclient.AcquireOptions{TTL: 10 * time.Second})
		if err != nil {
			log.Fatal(err)
		}
		defer lease.Release(ctx)
		fmt.Println("token", lease.Token())
	}
	if _, err := client.Advance(ctx, "billing-close", 4711); err != nil {
		log.Fatal(err)
	}
	acquire()
	epoch, err := client.RaiseEpoch(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("epoch", epoch.Number)
	acquire()
	// Output:
	// token 4712
	// epoch 1
	// token 1099511627777
}

// Rows of resources that nobody has used for a week are deleted in the
// background, for as long as the context lasts.
func ExampleClient_PurgeLoop() {
	ctx := context.Background()
	pool, cleanup := database(ctx)
	defer cleanup()
	if err := lockclient.Migrate(ctx, pool); err != nil {
		log.Fatal(err)
	}
	client, err := lockclient.New(pool, "janitor", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	fmt.Println(client.PurgeLoop(ctx, &lockclient.PurgeOptions{OlderThan: 7 * 24 * time.Hour, Every: time.Hour}))
	// Output:
	// context deadline exceeded
}
