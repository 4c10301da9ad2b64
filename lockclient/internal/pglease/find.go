package pglease

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

var _ driver.Finder = (*Issuer)(nil)

// findSQL reads all leases. There is no index of lease IDs, since it would be written
// with every acquire and every release.
const findSQL = `SELECT l.resource, l.token, ` + settings + ` FROM fencepost.leases l
  WHERE l.lease_id OPERATOR(pg_catalog.=) $1::pg_catalog.text AND l.expires_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()
    AND l.resource OPERATOR(pg_catalog.<>) '' LIMIT 100`

// Find returns the claims of the leases that run under an ID.
func (i *Issuer) Find(ctx context.Context, leaseID string) (claims []guard.Claim, err error) {
	err = i.On(ctx, i.Pool, i.OpTimeout, func(ctx context.Context, conn *pgx.Conn, _ string) error {
		if err := i.CheckSchema(ctx, conn); err != nil {
			return err
		}
		claims = nil // a repeat begins again
		found := guard.Claim{LeaseID: leaseID}
		rows, _ := conn.Query(ctx, findSQL, leaseID) // ForEachRow has its error
		_, err := pgx.ForEachRow(rows, []any{&found.Resource, (*int64)(&found.Token), new(bool)}, func() error {
			claims = append(claims, found)
			return nil
		})
		return err
	})
	if err != nil {
		return nil, Failure("find", guard.Claim{LeaseID: leaseID}, Harmless(err))
	}
	return claims, nil
}
