package pgadmin_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/internal/leasetest"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin/pgadmin"
	"github.com/fencepost-go/fencepost/lockclient/pglock"

	"github.com/jackc/pgx/v5/pgxpool"
)

// database stands for the application's own.
func database(ctx context.Context) (*pgxpool.Pool, func()) {
	e := &example{}
	pool, err := pgxpool.New(ctx, leasetest.MigratedDatabase(e))
	if err != nil {
		panic(err)
	}
	return pool, func() { pool.Close(); e.cleanup() }
}

// example gets a database as a test does.
type example struct {
	testing.TB
	cleanup func()
}

func (*example) Helper()                      {}
func (*example) Name() string                 { return "example" }
func (*example) Fatalf(f string, args ...any) { panic(fmt.Sprintf(f, args...)) }
func (e *example) Cleanup(f func())           { e.cleanup = f }

// A resource whose tokens have come from another system continues above them,
// and after a restore that the server cannot detect all tokens move to a new
// epoch.
func ExampleOperator_Advance() {
	ctx := context.Background()
	pool, cleanup := database(ctx)
	defer cleanup()
	issuer, err := pglock.New(pool, nil)
	if err != nil {
		panic(err)
	}
	client, err := lockclient.New(issuer, "worker-7", nil)
	if err != nil {
		panic(err)
	}
	defer client.Close(ctx)
	acquire := func() {
		lease, err := client.TryAcquire(ctx, "billing-close", &lockclient.AcquireOptions{TTL: time.Minute})
		if err != nil {
			panic(err)
		}
		defer lease.Release(ctx)
		fmt.Println("token", lease.Token())
	}
	operator, err := pgadmin.New(pool, nil)
	if err != nil {
		panic(err)
	}
	if _, err := operator.Advance(ctx, "billing-close", 4711); err != nil {
		panic(err)
	}
	acquire()
	epoch, err := operator.RaiseEpoch(ctx)
	if err != nil {
		panic(err)
	}
	fmt.Println("epoch", epoch.Number)
	acquire()
	// Output:
	// token 4712
	// epoch 1
	// token 1099511627777
}

// A worker hangs. An operator cuts its lease, and raises the invalidated claim where
// the worker writes, so that it is fenced at once.
func ExampleOperator_ForceUnlock() {
	ctx := context.Background()
	pool, cleanup := database(ctx)
	defer cleanup()
	issuer, err := pglock.New(pool, nil)
	if err != nil {
		panic(err)
	}
	worker, err := lockclient.New(issuer, "worker-7", nil)
	if err != nil {
		panic(err)
	}
	defer worker.Close(ctx)
	lease, err := worker.TryAcquire(ctx, "billing-close", &lockclient.AcquireOptions{TTL: time.Hour})
	if err != nil {
		panic(err)
	}

	operator, err := pgadmin.New(pool, nil)
	if err != nil {
		panic(err)
	}
	info, err := operator.Get(ctx, "billing-close")
	if err != nil {
		panic(err)
	}
	fmt.Println(info.State, "by", info.Owner, "with token", info.Token)
	done, err := operator.ForceUnlock(ctx, "billing-close", "Ada", "worker-7 hangs, INC-42",
		&lockadmin.ForceUnlockOptions{ExpectedLeaseID: info.LeaseID})
	if err != nil {
		panic(err)
	}
	store := guard.NewMemory() // instead of the resource's own marks
	if _, err := store.Admit(ctx, done.Invalidated); err != nil {
		panic(err)
	}
	_, err = store.Admit(ctx, lease.Claim())
	fmt.Println("the worker's write:", guard.ReasonOf(err))
	fmt.Println("the worker learns:", lease.Renew(ctx))
	// Output:
	// held by worker-7 with token 1
	// the worker's write: stale
	// the worker learns: fencepost: lease lost: token 1 for "billing-close": force-unlocked by an operator, "Ada", because "worker-7 hangs, INC-42"
}

// A pattern is read by components, so one tenant's leases are not another's.
func ExampleOperator_List() {
	ctx := context.Background()
	pool, cleanup := database(ctx)
	defer cleanup()
	issuer, err := pglock.New(pool, nil)
	if err != nil {
		panic(err)
	}
	client, err := lockclient.New(issuer, "worker-7", nil)
	if err != nil {
		panic(err)
	}
	defer client.Close(ctx)
	for _, resource := range []string{"tenant_1:billing-close:2026-04", "tenant_1:payout:2026-04", "tenant_12:billing-close:2026-04"} {
		if _, err := client.TryAcquire(ctx, resource, &lockclient.AcquireOptions{TTL: time.Minute}); err != nil {
			panic(err)
		}
	}
	operator, err := pgadmin.New(pool, nil)
	if err != nil {
		panic(err)
	}
	for _, pattern := range []string{"tenant_1", "*:billing-close"} {
		for lease, err := range operator.List(ctx, pattern, nil) {
			if err != nil {
				panic(err)
			}
			fmt.Println(pattern, "chooses", lease.Resource)
		}
	}
	// Output:
	// tenant_1 chooses tenant_1:billing-close:2026-04
	// tenant_1 chooses tenant_1:payout:2026-04
	// *:billing-close chooses tenant_12:billing-close:2026-04
	// *:billing-close chooses tenant_1:billing-close:2026-04
}
