package sqlfence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/sqlfence"
)

// migrated is open with the schema and a table of invoices.
func migrated(ctx context.Context) (*sqlfence.DB[pgx.Tx], interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}, func()) {
	pool, done := open(ctx)
	db, err := sqlfence.Pgx(pool, nil)
	if err == nil {
		err = db.Migrate(ctx)
	}
	if err == nil {
		_, err = pool.Exec(ctx, `CREATE TABLE invoices (customer text PRIMARY KEY, cents bigint NOT NULL)`)
	}
	if err != nil {
		panic(err)
	}
	return db, pool, done
}

// A transaction that something else began, such as code made by sqlc.
func ExampleDB_Enter() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	db, pool, done := migrated(ctx)
	defer done()
	issue := func(token guard.Token, customer string) error {
		claim := guard.Claim{Resource: "tenant_123:invoices", Token: token}
		tx, err := pool.Begin(ctx)
		if err != nil {
			return err
		}
		defer tx.Rollback(ctx)
		if err := db.Enter(ctx, tx, claim); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "INSERT INTO invoices VALUES ($1, 100)", customer); err != nil {
			return err
		}
		return tx.Commit(ctx)
	}
	fmt.Println("b:", issue(11, "ardent"))
	fmt.Println("a:", issue(10, "boreal"))
	// Output:
	// b: <nil>
	// a: fencepost: stale fencing token: token 10 for "tenant_123:invoices", the mark is 11
}

// Two resources at once, serializable, with up to five more tries.
func ExampleDB_InTxAll() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	db, _, done := migrated(ctx)
	defer done()
	claims := []guard.Claim{{Resource: "tenant_123:invoices", Token: 11}, {Resource: "tenant_123:ledger", Token: 4}}
	opts := &sqlfence.TxOptions{Isolation: sql.LevelSerializable, Retries: 5}
	err := db.InTxAll(ctx, claims, opts, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO invoices VALUES ('ardent', 100)")
		return err
	})
	fmt.Println(err)
	// Output: <nil>
}

// Writes that are known beforehand take one round trip, COMMIT included.
func ExampleDB_Batch() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	db, _, done := migrated(ctx)
	defer done()
	claim := guard.Claim{Resource: "tenant_123:invoices", Token: 11}
	rows, err := db.Batch(ctx, claim,
		sqlfence.Raw("INSERT INTO invoices VALUES ($1, 100), ($2, 50)", "ardent", "boreal"),
		sqlfence.Raw("UPDATE invoices SET cents = cents * 2 WHERE customer = $1", "boreal"))
	fmt.Println(rows, err)
	// Output: [2 1] <nil>
}

// A mark that a made-up token raised refuses every holder until an operator
// puts it back to what the issuer has issued.
func ExampleAdmin_Reset() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	db, _, done := migrated(ctx)
	defer done()
	if err := db.Raise(ctx, guard.Claim{Resource: "tenant_123", Token: 999999}); err != nil {
		fmt.Println(err)
		return
	}
	err := db.Raise(ctx, guard.Claim{Resource: "tenant_123", Token: 12})
	fmt.Println("stale:", errors.Is(err, guard.ErrStale))

	mark, err := db.Mark(ctx, "tenant_123")
	if err != nil {
		fmt.Println(err)
		return
	}
	const issuersLast = 12
	fmt.Println("reset:", db.Admin().Reset(ctx, "tenant_123", mark, guard.Mark{Token: 11}, issuersLast, "alice", "load test used made-up tokens"))
	fmt.Println("raise:", db.Raise(ctx, guard.Claim{Resource: "tenant_123", Token: 12}))
	for r, err := range db.Admin().Resets(ctx, 0) {
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
