package main

import (
	"context"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/httpfence"
	"github.com/fencepost-go/fencepost/s3fence"
	"github.com/fencepost-go/fencepost/sqlfence"
	"github.com/fencepost-go/fencepost/sqlfence/sqlrow"
)

// fenced closes a period with every write fenced at its resource. This is the
// code to copy.
type fenced struct {
	db      *sqlfence.DB[pgx.Tx]
	rows    sqlrow.Executor
	closes  *sqlrow.Table
	client  *http.Client
	ledger  string
	exports *s3fence.Objects
}

func newFenced(ctx context.Context, pool *pgxpool.Pool, ledger string, store s3fence.S3) (*fenced, error) {
	db, err := sqlfence.Pgx(pool, nil)
	if err != nil {
		return nil, err
	}
	rows := sqlrow.Pgx(pool)
	closes, err := sqlrow.NewTable([]string{"tenant_billing_close"}, []string{"tenant_id", "period"}, billingClose, &sqlrow.TableOptions{
		Columns: map[string]string{"tenant": "tenant_id", "period": "period"},
		Rule:    guard.SameOrNewer, // closePeriod writes under the token that takeOver raised
	})
	if err != nil {
		return nil, err
	}
	transport, err := httpfence.NewTransport(nil, []string{ledger}, nil)
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: transport, Timeout: time.Minute}
	bucket, err := s3fence.Open(ctx, store, exportBucket, nil) // checks that the store enforces preconditions
	if err != nil {
		return nil, err
	}
	exports, err := bucket.Objects(s3fence.SealedGzip, // any reader of gzip sees exactly the CSV
		&s3fence.ObjectsOptions{Resource: billingClose, KeyPattern: "{tenant}/{period}.csv"})
	if err != nil {
		return nil, err
	}
	return &fenced{db: db, rows: rows, closes: closes, client: client, ledger: ledger, exports: exports}, nil
}

// takeOver raises each mark: the one that the transactions of issue and of the
// ledger, in the same database, compare with, after an older holder's open ones
// have ended; the row's own; and the object's own.
func (f *fenced) takeOver(ctx context.Context, claim guard.Claim) error {
	return guard.RaiseAll(ctx, claim,
		guard.Place{Name: "database", Raise: f.db.Raise},
		guard.Place{Name: "row", Raise: func(ctx context.Context, claim guard.Claim) error {
			return f.closes.Raise(ctx, f.rows, claim, sqlrow.Key{tenant, period}, nil)
		}},
		guard.Place{Name: "export", Raise: func(ctx context.Context, claim guard.Claim) error {
			return f.exports.Raise(ctx, claim, exportKey)
		}})
}

// issue is a fenced transaction: no row of the set changes under an older token.
func (f *fenced) issue(ctx context.Context, claim guard.Claim, by string, amounts map[string]int64) error {
	return f.db.InTx(ctx, claim, func(ctx context.Context, tx pgx.Tx) error {
		b := &pgx.Batch{}
		for customer, cents := range amounts {
			b.Queue(upsertInvoice, tenant, period, customer, cents, by)
		}
		return tx.SendBatch(ctx, b).Close()
	})
}

// closePeriod is a single statement: the row's own column is its mark.
func (f *fenced) closePeriod(ctx context.Context, claim guard.Claim, by string, total int64) error {
	return f.closes.Update(ctx, f.rows, claim, sqlrow.Key{tenant, period}, sqlrow.Set{
		"status":      "closed",
		"closed_by":   by,
		"total_cents": total,
		"closes":      sqlrow.Raw("closes + 1"),
	})
}

// post sends the claim too; the ledger compares it with its own mark.
func (f *fenced) post(ctx context.Context, claim guard.Claim, by string, total int64) error {
	return postToLedger(guard.WithClaim(ctx, claim), f.client, f.ledger, by, total)
}

// export replaces the object and its mark in one conditional PUT.
func (f *fenced) export(ctx context.Context, claim guard.Claim, by string, amounts map[string]int64) error {
	return f.exports.Put(ctx, claim, exportKey, exportOf(amounts), &s3fence.Headers{
		ContentType: "text/csv", ContentEncoding: "gzip", Metadata: map[string]string{exportedBy: by},
	})
}
