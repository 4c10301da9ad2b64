-- name: InsertInvoice :one
INSERT INTO invoices (tenant, cents) VALUES ($1, $2) RETURNING id;

-- name: IncreaseInvoices :execrows
UPDATE invoices SET cents = cents + $2 WHERE tenant = $1;

-- name: TotalOfTenant :one
SELECT coalesce(sum(cents), 0)::bigint AS total FROM invoices WHERE tenant = $1;
