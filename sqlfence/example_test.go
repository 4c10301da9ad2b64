package sqlfence_test

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/sqlfence"
	"github.com/fencepost-go/fencepost/sqlfence/internal/scratch"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"
)

// A set of rows needs a fenced transaction: a stale holder may insert as well.
func ExampleDB_InTx() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	pool, done := scratch.Open(ctx)
	defer done()
	pool.Exec(ctx, `CREATE TABLE invoices (customer text PRIMARY KEY, cents bigint NOT NULL)`)

	db, err := sqlfence.Pgx(pool, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := sqladmin.Pgx(pool).Migrate(ctx); err != nil {
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
