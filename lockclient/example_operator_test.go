package lockclient_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/fencepost-go/fencepost/guard"
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

// A worker hangs. An operator cuts its lease, and raises the burned claim where
// the worker writes, so that it is fenced at once.
func ExampleOperator_ForceUnlock() {
	ctx := context.Background()
	pool, cleanup := database(ctx)
	defer cleanup()
	if err := lockclient.Migrate(ctx, pool); err != nil {
		log.Fatal(err)
	}
	worker, err := lockclient.New(pool, "worker-7", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer worker.Close()
	lease, err := worker.TryAcquire(ctx, "billing-close", &lockclient.AcquireOptions{TTL: time.Hour})
	if err != nil {
		log.Fatal(err)
	}

	operator, err := lockclient.NewOperator(pool, nil)
	if err != nil {
		log.Fatal(err)
	}
	info, err := operator.Get(ctx, "billing-close")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(info.State, "by", info.Owner, "with token", info.Token)
	done, err := operator.ForceUnlock(ctx, "billing-close", "Ada", "worker-7 hangs, INC-42",
		&lockclient.ForceUnlockOptions{ExpectedLeaseID: info.LeaseID})
	if err != nil {
		log.Fatal(err)
	}
	store := guard.NewMemory(nil) // in place of the resource's own marks
	if _, err := store.Admit(ctx, done.Burned); err != nil {
		log.Fatal(err)
	}
	_, err = store.Admit(ctx, lease.Claim())
	fmt.Println("the worker's write:", guard.ReasonOf(err))
	fmt.Println("the worker learns:", lease.Renew(ctx))
	// Output:
	// held by worker-7 with token 1
	// the worker's write: stale
	// the worker learns: fencepost: lease lost: token 1 for "billing-close": force-unlocked by an operator, "Ada", because "worker-7 hangs, INC-42"
}

// Each tenant has its resources to itself.
func ExampleOptions_namespace() {
	ctx := context.Background()
	pool, cleanup := database(ctx)
	defer cleanup()
	if err := lockclient.Migrate(ctx, pool); err != nil {
		log.Fatal(err)
	}
	for _, tenant := range []string{"tenant_123", "tenant_124"} {
		client, err := lockclient.New(pool, "worker-7", &lockclient.Options{Namespace: tenant})
		if err != nil {
			log.Fatal(err)
		}
		defer client.Close()
		lease, err := client.TryAcquire(ctx, "billing-close:2026-04", &lockclient.AcquireOptions{TTL: time.Minute})
		if err != nil {
			log.Fatal(err)
		}
		page, err := client.Operator().List(ctx, "", nil)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(lease.Resource(), "of", len(page.Leases))
	}
	// Output:
	// tenant_123:billing-close:2026-04 of 1
	// tenant_124:billing-close:2026-04 of 1
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
