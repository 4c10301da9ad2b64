package lockclient_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/pglock"

	"github.com/jackc/pgx/v5/pgxpool"
)

// database stands for the application's own pool.
func database(ctx context.Context) (*pgxpool.Pool, func()) {
	example := &example{}
	pool, err := pgxpool.New(ctx, pgtest.Database(example))
	if err != nil {
		log.Fatal(err)
	}
	return pool, func() { pool.Close(); example.cleanup() }
}

// example gets a database on the server that the tests share.
type example struct{ cleanup func() }

func (*example) Helper()                           {}
func (*example) Name() string                      { return "example" }
func (*example) Logf(format string, args ...any)   { log.Printf(format, args...) }
func (*example) Fatalf(format string, args ...any) { log.Fatalf(format, args...) }
func (e *example) Cleanup(f func())                { e.cleanup = f }

// The work runs while the lease is held and finds its claim in the context.
func ExampleClient_Hold() {
	ctx := context.Background()
	pool, cleanup := database(ctx)
	defer cleanup()
	if err := pglock.Migrate(ctx, pool); err != nil {
		log.Fatal(err)
	}
	client, err := lockclient.New(guard.Must(pglock.New(pool, nil)), "worker-7", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(context.Background())

	opts := &lockclient.AcquireOptions{TTL: 30 * time.Second}
	err = client.Hold(ctx, "tenant_123:billing-close:2026-04", opts, func(ctx context.Context) error {
		claim, _ := guard.ClaimFrom(ctx) // what the fences present
		fmt.Println("token", claim.Token)
		return ctx.Err() // ends if the lease is lost
	})
	if errors.Is(err, lockclient.ErrLeaseLost) {
		log.Print("another worker may have taken over")
	}
	fmt.Println(err)
	// Output:
	// token 1
	// <nil>
}

// A try that is refused says who has the lease.
func ExampleClient_TryAcquire() {
	ctx := context.Background()
	pool, cleanup := database(ctx)
	defer cleanup()
	if err := pglock.Migrate(ctx, pool); err != nil {
		log.Fatal(err)
	}
	for _, owner := range []string{"worker-7", "worker-8"} {
		client, err := lockclient.New(guard.Must(pglock.New(pool, nil)), owner, nil)
		if err != nil {
			log.Fatal(err)
		}
		defer client.Close(context.Background())
		lease, err := client.TryAcquire(ctx, "nightly", &lockclient.AcquireOptions{TTL: time.Minute})
		var held *lockclient.HeldError
		switch {
		case errors.As(err, &held):
			fmt.Println(owner, "is refused: held by", held.Owner, "with token", held.Token)
		case err != nil:
			log.Fatal(err)
		default:
			defer lease.Release(ctx)
			fmt.Println(owner, "has token", lease.Token(), lease.Valid())
		}
	}
	// Output:
	// worker-7 has token 1 true
	// worker-8 is refused: held by worker-7 with token 1
}

// The TTL follows from measured pauses and renewals.
func ExampleRecommendTTL() {
	ttl := lockclient.RecommendTTL(lockclient.Delays{Pause: 2 * time.Second, Renewal: 500 * time.Millisecond, Margin: 10 * time.Second})
	fmt.Println(ttl)
	// Output:
	// 12.5s
}

// Acquire waits; the lease is then renewed by hand and released.
func ExampleClient_Acquire() {
	work := func(ctx context.Context, client *lockclient.Client) error {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		lease, err := client.Acquire(ctx, "nightly", &lockclient.AcquireOptions{TTL: time.Minute})
		if err != nil {
			return err
		}
		defer lease.Release(ctx) // works though ctx may have ended
		for range 10 {
			if err := lease.Renew(ctx); errors.Is(err, lockclient.ErrLeaseLost) {
				return err
			}
			// Present lease.Claim() with every write.
		}
		return nil
	}
	_ = work
}

// The schema can be printed for another migration tool.
func ExampleMigrations() {
	for _, m := range pglock.Migrations() {
		name := fmt.Sprintf("%04d_fencepost_%s.sql", m.Version, m.Name)
		if err := os.WriteFile(name, []byte(m.SQL), 0o644); err != nil {
			log.Fatal(err)
		}
	}
}
