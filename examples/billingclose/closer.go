package main

import (
	"context"

	"github.com/fencepost-go/fencepost/guard"
)

// closer does the four kinds of work of closing a period. The story runs the
// same worker with either of two: fenced, and unfenced, which is the code that
// everybody writes first.
type closer interface {
	// takeOver makes older holders' writes impossible from here on; what is
	// read after it stays true.
	takeOver(ctx context.Context, claim guard.Claim) error
	// issue writes invoices, a set of rows, all or none.
	issue(ctx context.Context, claim guard.Claim, by string, amounts map[string]int64) error
	// post books the total in the ledger, another service, once per period.
	post(ctx context.Context, claim guard.Claim, by string, total int64) error
	// export writes the object with the invoices so far.
	export(ctx context.Context, claim guard.Claim, by string, amounts map[string]int64) error
	// closePeriod writes the one row that says the period is closed.
	closePeriod(ctx context.Context, claim guard.Claim, by string, total int64) error
}

const upsertInvoice = `INSERT INTO invoices (tenant_id, period, customer, cents, issued_by) VALUES ($1, $2, $3, $4, $5)
	ON CONFLICT (tenant_id, period, customer) DO UPDATE SET cents = excluded.cents, issued_by = excluded.issued_by`
