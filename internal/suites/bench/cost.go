package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/sqlfence"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"
)

var perCall = []string{"a second", "p50 µs", "p99 µs"}

// cost compares fenced work with the same work unfenced.
var cost = []experiment{
	{name: "transaction", title: "A fenced transaction", columns: perCall, run: costTransaction, plot: plotRatios,
		about: "`DB.InTx` with one UPDATE, `DB.Exec` of it and the bare UPDATE against the user's own BEGIN, UPDATE, COMMIT. All clients are one holder on one resource, each with its own row."},
}

// costTransaction measures each server and network; in a short run one of them.
func costTransaction(ctx context.Context, e *env, s *Section) error {
	for _, durable := range []bool{true, false} {
		for _, roundTrip := range []time.Duration{0, time.Millisecond} {
			if e.short && (durable || roundTrip > 0) {
				continue
			}
			if err := e.part(func(e *env) error { return transactionsOn(ctx, e, s, durable, roundTrip) }); err != nil {
				return err
			}
		}
	}
	return nil
}

func transactionsOn(ctx context.Context, e *env, s *Section, durable bool, roundTrip time.Duration) error {
	url, err := e.database(ctx, durable)
	if err != nil {
		return err
	}
	pool, err := e.pool(ctx, url, 16, roundTrip)
	if err != nil {
		return err
	}
	db, err := sqlfence.Pgx(pool, nil)
	if err != nil {
		return err
	}
	if err := sqladmin.Pgx(pool).Migrate(ctx); err != nil {
		return err
	}
	claim := guard.Claim{Resource: "jobs", Token: 5}
	if err := db.Raise(ctx, claim); err != nil {
		return err
	}
	// A row for each client.
	if err := execute(ctx, pool, "CREATE TABLE jobs (id int PRIMARY KEY, v bigint NOT NULL DEFAULT 0) WITH (fillfactor = 50)",
		"INSERT INTO jobs SELECT generate_series(0, 99)", "VACUUM ANALYZE jobs"); err != nil {
		return err
	}
	const statement = "UPDATE jobs SET v = $2 WHERE id = $1"
	update := func(ctx context.Context, tx pgx.Tx, client, i int) error {
		_, err := tx.Exec(ctx, statement, client, i)
		return err
	}
	own := pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}
	network := ""
	if roundTrip > 0 {
		network = fmt.Sprintf(", network of %d ms", roundTrip.Milliseconds())
	}
	for _, clients := range e.clients(1, 16, 64) {
		figures, err := Compare(ctx, Plan{Clients: clients, Block: 60 * time.Millisecond, Rounds: e.rounds(12)},
			Way{Name: "BEGIN, UPDATE, COMMIT", Do: timed(func(ctx context.Context, client, i int) error {
				return pgx.BeginTxFunc(ctx, pool, own, func(tx pgx.Tx) error { return update(ctx, tx, client, i) })
			})},
			Way{Name: "DB.InTx", Do: timed(func(ctx context.Context, client, i int) error {
				return db.InTx(ctx, claim, func(ctx context.Context, tx pgx.Tx) error { return update(ctx, tx, client, i) })
			})},
			Way{Name: "UPDATE", Do: timed(func(ctx context.Context, client, i int) error {
				_, err := pool.Exec(ctx, statement, client, i)
				return err
			})},
			Way{Name: "DB.Exec", Do: timed(func(ctx context.Context, client, i int) error {
				_, err := db.Exec(ctx, claim, statement, client, i)
				return err
			})})
		if err != nil {
			return err
		}
		s.add(commits(durable)+network+", "+count(clients, "client"), figures)
	}
	return nil
}
