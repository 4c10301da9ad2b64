package sqlfence_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/sqlfence"
)

// open connects the examples, which run one after another, to a scratch
// database; a service has its own pool.
func open(ctx context.Context) (*pgxpool.Pool, func()) {
	pool := scratch()
	if _, err := pool.Exec(ctx, "DROP SCHEMA IF EXISTS fencepost CASCADE; DROP SCHEMA public CASCADE; CREATE SCHEMA public"); err != nil {
		panic(err)
	}
	return pool, pool.Reset
}

// scratch is kept until the tests end.
var scratch = sync.OnceValue(func() *pgxpool.Pool { return pgtest.Pool(sqlfence.Process{}) })

// A worker that was paused writes after its successor has.
func ExampleTable_Update() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	pool, done := open(ctx)
	defer done()
	pool.Exec(ctx, `CREATE TABLE closes (tenant text PRIMARY KEY, status text NOT NULL DEFAULT 'open',
		last_fencing_token bigint NOT NULL DEFAULT 0)`)
	pool.Exec(ctx, `INSERT INTO closes (tenant) VALUES ('tenant_123')`)

	db, err := sqlfence.Pgx(pool, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	name := guard.Must(guard.NewTemplate("{tenant}:close"))
	closes, err := sqlfence.NewTable([]string{"closes"}, []string{"tenant"}, name, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	b := guard.Claim{Resource: "tenant_123:close", Token: 11}
	fmt.Println("b:", closes.Update(ctx, db, b, sqlfence.Key{"tenant_123"}, sqlfence.Set{"status": "closed"}))

	a := guard.Claim{Resource: "tenant_123:close", Token: 10}
	err = closes.Update(ctx, db, a, sqlfence.Key{"tenant_123"}, sqlfence.Set{"status": "open"})
	fmt.Println("a:", err)
	fmt.Println(errors.Is(err, guard.ErrStale))
	other := guard.Claim{Resource: "tenant_124:close", Token: 12}
	fmt.Println(closes.Update(ctx, db, other, sqlfence.Key{"tenant_123"}, sqlfence.Set{"status": "open"}))
	// Output:
	// b: <nil>
	// a: fencepost: stale fencing token: token 10 for "tenant_123:close", the mark is 11
	// true
	// fencepost: claim for another resource: the claim is for "tenant_124:close", this resource is "tenant_123:close"; name both by one guard.Template
}

// A set of rows needs a fenced transaction: a stale holder may insert as well.
func ExampleDB_InTx() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	pool, done := open(ctx)
	defer done()
	pool.Exec(ctx, `CREATE TABLE invoices (customer text PRIMARY KEY, cents bigint NOT NULL)`)

	db, err := sqlfence.Pgx(pool, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := db.Migrate(ctx); err != nil {
		fmt.Println(err)
		return
	}
	issue := func(token guard.Token, customer string) error {
		claim := guard.Claim{Resource: "tenant_123:invoices", Token: token}
		return db.InTx(ctx, claim, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "INSERT INTO invoices VALUES ($1, 100)", customer)
			return err
		})
	}
	fmt.Println("b:", issue(11, "ardent"))
	fmt.Println("a:", issue(10, "boreal"))
	// Output:
	// b: <nil>
	// a: fencepost: stale fencing token: token 10 for "tenant_123:invoices", the mark is 11
}

// Triggers refuse every write to a table without a current claim.
func ExampleAdmin_InstallTrigger() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	pool, done := open(ctx)
	defer done()
	pool.Exec(ctx, `CREATE TABLE accounts (tenant text PRIMARY KEY, cents bigint NOT NULL)`)

	db, err := sqlfence.Pgx(pool, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := db.Migrate(ctx); err != nil {
		fmt.Println(err)
		return
	}
	accounts := sqlfence.Trigger{
		Table:    []string{"accounts"},
		Resource: guard.Must(guard.NewTemplate("account:{tenant}")),
		Columns:  map[string]string{"tenant": "tenant"},
	}
	if err := db.Admin().InstallTrigger(ctx, accounts); err != nil {
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
	found, err := db.Admin().Verify(ctx, sqlfence.Verification{Triggers: []sqlfence.Trigger{accounts}})
	fmt.Println(found, err)
	// Output:
	// missing
	// <nil>
	// <nil>
	// [] <nil>
}
