package sqladmin_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/sqlfence"
	"github.com/fencepost-go/fencepost/sqlfence/internal/scratch"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"
	"github.com/jackc/pgx/v5"
)

func TestMain(m *testing.M) { scratch.Main(m) }

// Triggers refuse every write to a table without a current claim.
func ExampleAdmin_InstallTrigger() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	pool, done := scratch.Open(ctx)
	defer done()
	pool.Exec(ctx, `CREATE TABLE accounts (tenant text PRIMARY KEY, cents bigint NOT NULL)`)

	db, err := sqlfence.Pgx(pool, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	admin := sqladmin.Pgx(pool)
	if err := admin.Migrate(ctx); err != nil {
		fmt.Println(err)
		return
	}
	accounts := sqladmin.Trigger{
		Table:    []string{"accounts"},
		Resource: guard.Must(guard.NewTemplate("account:{tenant}")),
		Columns:  map[string]string{"tenant": "tenant"},
	}
	if err := admin.InstallTrigger(ctx, accounts); err != nil {
		fmt.Println(err)
		return
	}
	const insert = "INSERT INTO accounts VALUES ('tenant_123', 100)"
	_, err = pool.Exec(ctx, insert)
	fmt.Println(guard.ReasonOf(sqlfence.ErrorFrom(err)))

	claim := guard.Claim{Resource: "account:tenant_123", Token: 11}
	fmt.Println(db.Raise(ctx, claim))
	fmt.Println(pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if err := db.Present(ctx, tx, claim); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, insert)
		return err
	}))
	found, err := admin.Verify(ctx, sqladmin.Verification{Triggers: []sqladmin.Trigger{accounts}})
	fmt.Println(found, err)
	// Output:
	// missing
	// <nil>
	// <nil>
	// [] <nil>
}

// A mark that a made-up token raised refuses every holder until an operator
// puts it back to what the issuer has issued.
func ExampleAdmin_Reset() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	pool, done := scratch.Open(ctx)
	defer done()
	admin := sqladmin.Pgx(pool)
	db, err := sqlfence.Pgx(pool, nil)
	if err == nil {
		err = admin.Migrate(ctx)
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := db.Raise(ctx, guard.Claim{Resource: "tenant_123", Token: 999999}); err != nil {
		fmt.Println(err)
		return
	}
	err = db.Raise(ctx, guard.Claim{Resource: "tenant_123", Token: 12})
	fmt.Println("stale:", errors.Is(err, guard.ErrStale))

	mark, err := db.Mark(ctx, "tenant_123")
	if err != nil {
		fmt.Println(err)
		return
	}
	const issuersLast = 12
	fmt.Println("reset:", admin.Reset(ctx, sqladmin.MarkReset{Resource: "tenant_123", From: mark, To: guard.Mark{Token: 11},
		IssuersLast: issuersLast, Actor: "alice", Reason: "load test used made-up tokens"}))
	fmt.Println("raise:", db.Raise(ctx, guard.Claim{Resource: "tenant_123", Token: 12}))
	for r, err := range admin.Resets(ctx, 0) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(r.Resource, r.FromToken, r.ToToken, r.Actor, r.Reason)
	}
	// Output:
	// stale: true
	// reset: <nil>
	// raise: <nil>
	// tenant_123 999999 11 alice load test used made-up tokens
}
