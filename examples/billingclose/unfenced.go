package main

import (
	"bytes"
	"context"
	"net/http"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
)

// unfenced closes a period under a lease and nothing else: it holds the lock,
// so it writes. It is correct until its process is paused once.
type unfenced struct {
	pool   *pgxpool.Pool
	client *http.Client
	ledger string
	store  *s3.Client
}

func (u *unfenced) takeOver(context.Context, guard.Claim) error { return nil }

func (u *unfenced) issue(ctx context.Context, _ guard.Claim, by string, amounts map[string]int64) error {
	return pgx.BeginFunc(ctx, u.pool, func(tx pgx.Tx) error {
		b := &pgx.Batch{}
		for customer, cents := range amounts {
			b.Queue(upsertInvoice, tenant, period, customer, cents, by)
		}
		return tx.SendBatch(ctx, b).Close()
	})
}

func (u *unfenced) closePeriod(ctx context.Context, _ guard.Claim, by string, total int64) error {
	_, err := u.pool.Exec(ctx, `UPDATE tenant_billing_close
		SET status = 'closed', closed_by = $3, total_cents = $4, closes = closes + 1
		WHERE tenant_id = $1 AND period = $2`, tenant, period, by, total)
	return err
}

func (u *unfenced) post(ctx context.Context, _ guard.Claim, by string, total int64) error {
	return postToLedger(ctx, u.client, u.ledger, by, total)
}

func (u *unfenced) export(ctx context.Context, _ guard.Claim, by string, amounts map[string]int64) error {
	_, err := u.store.PutObject(ctx, &s3.PutObjectInput{
		Bucket: aws.String(exportBucket), Key: aws.String(exportKey), Body: bytes.NewReader(exportOf(amounts)),
		ContentType: aws.String("text/csv"), Metadata: map[string]string{exportedBy: by},
	})
	return err
}
