// Command worker is what TestTwoBuilds builds twice: it migrates, or holds a lease and
// writes under it until its input ends.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin/pgadmin"
	"github.com/fencepost-go/fencepost/lockclient/pglock"
	"github.com/fencepost-go/fencepost/sqlfence"
)

func main() {
	if err := run(context.Background(), os.Args[1]); err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	fmt.Println("done")
}

func run(ctx context.Context, resource string) error {
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer pool.Close()
	if resource == "migrate" {
		return pgadmin.Migrate(ctx, pool)
	}
	issuer, err := pglock.New(pool, nil)
	if err != nil {
		return err
	}
	client, err := lockclient.New(issuer, "worker", nil)
	if err != nil {
		return err
	}
	db, err := sqlfence.Pgx(pool, nil)
	if err != nil {
		return err
	}
	stopped := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, os.Stdin)
		stopped <- err
	}()
	err = client.Hold(ctx, resource, &lockclient.AcquireOptions{TTL: 10 * time.Second}, func(ctx context.Context) error {
		claim, _ := guard.ClaimFrom(ctx)
		for first := true; ; first = false {
			if err := db.InTx(ctx, claim, func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "INSERT INTO work VALUES ($1, $2)", claim.Resource, int64(claim.Token))
				return err
			}); err != nil {
				return err
			}
			if first {
				fmt.Println("token", claim.Token)
			}
			select {
			case err := <-stopped:
				return err
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
	return errors.Join(err, client.Close(ctx))
}
