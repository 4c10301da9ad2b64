// Command quickstart does a job under a lease, and shows what a worker gets whose own lease
// ended before.
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin/pgadmin"
	"github.com/fencepost-go/fencepost/lockclient/pglock"
	"github.com/fencepost-go/fencepost/sqlfence"
)

func main() {
	ctx := context.Background()
	pool := must(pgxpool.New(ctx, os.Getenv("DATABASE_URL")))
	must(0, pgadmin.Migrate(ctx, pool)) // schema fencepost
	must(pool.Exec(ctx, "CREATE TABLE IF NOT EXISTS billing AS SELECT 'acme' AS tenant, 'open' AS status"))
	client := must(lockclient.New(must(pglock.New(pool, nil)), "worker-7", nil))
	db := must(sqlfence.Pgx(pool, nil))

	// A worker is paused here, with token 1, and its lease ends.
	lease := must(client.Acquire(ctx, "acme:billing-close:2026-04", nil))
	paused := lease.Claim()
	must(0, lease.Release(ctx))

	err := client.Hold(ctx, "acme:billing-close:2026-04", nil, func(ctx context.Context) error {
		claim, _ := guard.ClaimFrom(ctx) // carries the lease's token, 2
		return db.InTx(ctx, claim, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "UPDATE billing SET status = 'closed' WHERE tenant = 'acme'")
			return err
		})
	})
	fmt.Println("the holder:       ", err)

	// The worker that was paused with token 1 wakes up and writes.
	err = db.InTx(ctx, paused, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "UPDATE billing SET status = 'open' WHERE tenant = 'acme'")
		return err
	})
	fmt.Println("the paused worker:", err) // guard.ErrStale
}

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}
