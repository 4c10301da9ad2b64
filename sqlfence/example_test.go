package sqlfence_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/sqlfence"
)

// open connects the examples to a scratch database; a service has its own pool.
func open(ctx context.Context) (*pgxpool.Pool, func()) {
	url, stop, err := pgtest.Provide(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return pool, func() { pool.Close(); stop() }
}

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
	closes, err := sqlfence.NewTable([]string{"closes"}, []string{"tenant"}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	b := guard.Claim{Resource: "tenant_123", Token: 11}
	fmt.Println("b:", closes.Update(ctx, db, b, sqlfence.Key{"tenant_123"}, sqlfence.Set{"status": "closed"}))

	a := guard.Claim{Resource: "tenant_123", Token: 10}
	err = closes.Update(ctx, db, a, sqlfence.Key{"tenant_123"}, sqlfence.Set{"status": "open"})
	fmt.Println("a:", err)
	fmt.Println(errors.Is(err, guard.ErrStale))
	// Output:
	// b: <nil>
	// a: fencepost: stale fencing token: token 10 for "tenant_123", the mark is 11
	// true
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
