// Command quickstart does the same work under two leases, then again under the first.
package main

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/httpfence"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
	"github.com/fencepost-go/fencepost/lockclient/pglock"
	"github.com/fencepost-go/fencepost/sqlfence"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

var closes = guard.Must(guard.NewTemplate("{tenant}:billing-close:{period}"))

func main() {
	ctx, name := context.Background(), must(closes.Name("acme", "2026-04"))
	pool := must(pgxpool.New(ctx, os.Getenv("DATABASE_URL")))
	db := must(sqlfence.Pgx(pool, nil))
	must(0, lockadmin.Migrate(ctx, pool))
	must(pool.Exec(ctx, "CREATE TABLE IF NOT EXISTS postings (tenant text, cents bigint)"))
	// A ledger: another service, with marks in its own memory.
	fence := must(httpfence.New(guard.NewMemory(nil), func(*http.Request) (string, error) { return name, nil }, nil))
	ledger := httptest.NewServer(fence.Admit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	web := &http.Client{Transport: must(httpfence.NewTransport(nil, []string{ledger.URL}, nil))}
	work := func(ctx context.Context) error {
		claim, _ := guard.ClaimFrom(ctx)
		err := db.InTx(ctx, claim, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "INSERT INTO postings VALUES ('acme', 21250)")
			return err
		})
		_, refused := httpfence.Do(web, must(http.NewRequestWithContext(ctx, "POST", ledger.URL, nil)))
		fmt.Printf("token %v  database: %v\ntoken %v  ledger:   %v\n", claim.Token, err, claim.Token, refused)
		return nil
	}
	client, hold := must(lockclient.New(must(pglock.New(pool, nil)), "worker-7", nil)), &lockclient.HoldOptions{TTL: time.Minute}
	var first guard.Claim
	must(0, client.Hold(ctx, name, hold, func(ctx context.Context) error {
		first, _ = guard.ClaimFrom(ctx)
		return work(ctx)
	}))
	must(0, client.Hold(ctx, name, hold, work))
	must(0, work(guard.WithClaim(ctx, first))) // as a process does that was paused
}

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}
