// Command consumer shows a fence behind a message queue: the producer's claim
// travels in the message's headers (guard.Carrier), and the consumer's write is
// fenced by it. A stale message is acknowledged and dropped.
//
//	go run ./examples/consumer
//
// The code to copy is in consumer.go. The queue is a slice: an adapter for
// a broker's headers is the dozen lines of the type headers.
package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/examples/internal/demo"
	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/sqlfence"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"
)

const schema = `
CREATE TABLE accounts (id text PRIMARY KEY, cents bigint NOT NULL);
CREATE TABLE consumed (id text PRIMARY KEY);
INSERT INTO accounts VALUES ('acme', 0)`

func main() { demo.Main(2*time.Minute, run) }

func run(ctx context.Context, out io.Writer) error {
	pool, cleanup, err := demo.Pool(ctx)
	if err != nil {
		return err
	}
	defer cleanup()
	c, err := newConsumer(ctx, pool)
	if err != nil {
		return err
	}

	// The producer with token 10 is cut off; its last message is late.
	old := guard.Claim{Resource: "account:acme", Token: 10, LeaseID: "a"}
	now := guard.Claim{Resource: "account:acme", Token: 11, LeaseID: "b"}
	queue := []message{
		must(produce("m1", 100, "acme", old)),
		must(produce("m2", 10, "acme", now)),
		must(produce("m2", 10, "acme", now)), // delivered again
		must(produce("m3", 1, "acme", old)),  // late
		{ID: "m4", Account: "acme", Cents: 5},
	}
	got := map[verdict]int{}
	for _, m := range queue {
		err := c.consume(ctx, m)
		v := verdictOf(err)
		got[v]++
		why := "applied, or found to have been" // a message may come twice
		if err != nil {
			why = err.Error()
		}
		fmt.Fprintf(out, "%s: %-18s %s\n", m.ID, v, why)
	}
	var cents int64
	if err := pool.QueryRow(ctx, "SELECT cents FROM accounts").Scan(&cents); err != nil {
		return err
	}
	fmt.Fprintf(out, "the account is at %d\n", cents)
	if cents != 110 || got[acknowledge] != 3 || got[drop] != 1 || got[deadLetter] != 1 {
		return demo.ErrUnexpected
	}
	return nil
}

func newConsumer(ctx context.Context, pool *pgxpool.Pool) (*consumer, error) {
	db, err := sqlfence.Pgx(pool, nil)
	if err != nil {
		return nil, err
	}
	if err := sqladmin.Pgx(pool).Migrate(ctx); err != nil {
		return nil, err
	}
	_, err = pool.Exec(ctx, schema)
	return &consumer{db}, err
}

func must(m message, err error) message {
	if err != nil {
		panic(err) // only constants can fail here
	}
	return m
}
