package main

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/sqlfence"
)

// ownTx is an application's own transaction, fenced by what fence does in it.
// What its COMMIT did when the answer was lost is not known, and said so by an
// error of no kind; what failed before COMMIT was sent has written nothing.
func ownTx(ctx context.Context, pool *pgxpool.Pool, claim guard.Claim, fence, fn func(tx pgx.Tx) error) error {
	tx, err := pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return failed(claim, err)
	}
	// A stopped holder must not keep its successor waiting for ever.
	_, err = tx.Exec(ctx, "SELECT set_config('idle_in_transaction_session_timeout', '600', true), set_config('lock_timeout', '1000', true)")
	if err == nil {
		err = fence(tx)
	}
	if err == nil {
		err = fn(tx)
	}
	if err == nil {
		return tx.Commit(ctx)
	}
	_ = tx.Rollback(ctx) // a connection that cannot roll back is closed, and the server does it
	if err = sqlfence.ErrorFrom(err); guard.ReasonOf(err) == guard.ReasonOther {
		return failed(claim, err)
	}
	return err
}
