package pglease

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

var _ driver.Finder = (*Issuer)(nil)

// Find returns the claims of the leases that run under an ID. It reads all leases.
func (i *Issuer) Find(ctx context.Context, leaseID string) (claims []guard.Claim, err error) {
	err = i.On(ctx, i.Pool, i.OpTimeout, func(ctx context.Context, conn *pgx.Conn, _ string) error {
		if err := i.CheckSchema(ctx, conn); err != nil {
			return err
		}
		claims = nil // a repeat begins again
		found := guard.Claim{LeaseID: leaseID}
		rows, _ := conn.Query(ctx, findSQL, leaseID) // ForEachRow has its error
		_, err := pgx.ForEachRow(rows, []any{&found.Resource, (*int64)(&found.Token)}, func() error {
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
