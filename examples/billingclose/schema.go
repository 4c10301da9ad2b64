package main

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
)

const (
	tenant = "tenant_123"
	period = "2026-04"
)

// billingClose names what is leased and fenced, once for the lease client, the
// table, the ledger's route and the export.
var billingClose = guard.Must(guard.NewTemplate("{tenant}:billing-close:{period}"))

// resource is this tenant's close of this period.
func resource() string { return guard.Must(billingClose.Name(tenant, period)) }

// schema is that of a typical billing service. Only last_fencing_token is there
// for the fence; the invoices need no column, because a fenced transaction
// guards the whole set, rows that do not exist yet included.
const schema = `
CREATE TABLE tenant_billing_close (
  tenant_id text, period text,
  status text NOT NULL DEFAULT 'open',
  total_cents bigint NOT NULL DEFAULT 0,
  closed_by text NOT NULL DEFAULT '',
  closes int NOT NULL DEFAULT 0,
  last_fencing_token bigint NOT NULL DEFAULT 0,
  PRIMARY KEY (tenant_id, period)
);
CREATE TABLE metered (
  tenant_id text, period text, customer text, cents bigint NOT NULL,
  PRIMARY KEY (tenant_id, period, customer)
);
CREATE TABLE invoices (
  tenant_id text, period text, customer text, cents bigint NOT NULL, issued_by text NOT NULL,
  PRIMARY KEY (tenant_id, period, customer)
);
CREATE TABLE postings (
  tenant_id text, period text, cents bigint NOT NULL, posted_by text NOT NULL,
  PRIMARY KEY (tenant_id, period)
);`

func createSchema(ctx context.Context, pool *pgxpool.Pool) error {
	if _, err := pool.Exec(ctx, schema); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, `INSERT INTO tenant_billing_close (tenant_id, period) VALUES ($1, $2)`, tenant, period); err != nil {
		return err
	}
	_, err := pool.Exec(ctx, `INSERT INTO metered (tenant_id, period, customer, cents)
		SELECT $1, $2, c, 1000 * n FROM unnest(ARRAY['ardent','boreal','cobalt','dorian','ember','fjord']) WITH ORDINALITY AS x(c, n)`,
		tenant, period)
	return err
}

// correct changes a customer's metered amount, as a late correction does: a
// worker that computed before it has a stale amount in memory.
func correct(ctx context.Context, pool *pgxpool.Pool, customer string, cents int64) error {
	_, err := pool.Exec(ctx, `UPDATE metered SET cents = cents + $4 WHERE tenant_id = $1 AND period = $2 AND customer = $3`,
		tenant, period, customer, cents)
	return err
}

// state is the result of the story, by which it is judged.
type state struct {
	Status   string
	Total    int64
	ClosedBy string
	Closes   int
	Token    int64
	Invoices map[string]invoice
	Postings []posting
	Export   export
}

type invoice struct {
	Cents    int64
	IssuedBy string
}

type posting struct {
	Cents    int64
	PostedBy string
}

func readState(ctx context.Context, pool *pgxpool.Pool) (state, error) {
	s := state{Invoices: map[string]invoice{}}
	err := pool.QueryRow(ctx, `SELECT status, total_cents, closed_by, closes, last_fencing_token
		FROM tenant_billing_close WHERE tenant_id = $1 AND period = $2`, tenant, period).
		Scan(&s.Status, &s.Total, &s.ClosedBy, &s.Closes, &s.Token)
	if err != nil {
		return s, err
	}
	rows, _ := pool.Query(ctx, `SELECT customer, cents, issued_by FROM invoices WHERE tenant_id = $1 AND period = $2`, tenant, period)
	var customer string
	var i invoice
	if _, err := pgx.ForEachRow(rows, []any{&customer, &i.Cents, &i.IssuedBy}, func() error { s.Invoices[customer] = i; return nil }); err != nil {
		return s, err
	}
	rows, _ = pool.Query(ctx, `SELECT cents, posted_by FROM postings WHERE tenant_id = $1 AND period = $2`, tenant, period)
	s.Postings, err = pgx.CollectRows(rows, pgx.RowToStructByPos[posting])
	return s, err
}
