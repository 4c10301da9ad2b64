package sqlfence

import (
	"context"
	"database/sql"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
)

var (
	_ guard.Store = (*DB[pgx.Tx])(nil)
	_ guard.Store = (*DB[*sql.Tx])(nil)
)

const (
	markSQL = `SELECT ` + sqlkit.EncodedSQL + `, pg_catalog.pg_is_in_recovery(), m.token, m.lease, m.floor,
	pg_catalog.current_setting('synchronous_standby_names') OPERATOR(pg_catalog.<>) ''
FROM fencepost.mark($1::pg_catalog.text) m`
	retireSQL = "SELECT retired, floor FROM fencepost.retire($1::pg_catalog.timestamptz, $2::int)"
)

// Admit implements [guard.Store] on the marks of schema fencepost, so that the
// replicas of a service share them with each other and with [DB.InTx]. A claim
// that already is the mark costs one SELECT, or, where COMMITs wait for a synchronous
// standby, such a COMMIT, since that of the first raise may have given up its wait; a
// higher one is raised as by [DB.Raise], which waits for older fenced transactions.
//
// It reports nothing to Options.Observer: the surface that uses the store
// responds to the request and reports it, once.
func (d *DB[Tx]) Admit(ctx context.Context, claim guard.Claim) (guard.Mark, error) {
	if err := claim.Validate(); err != nil {
		return guard.Mark{}, err
	}
	mark, waits, err := d.mark(ctx, "admit", claim)
	if err != nil {
		return guard.Mark{}, sqlkit.Interrupted(ctx, err)
	}
	if claim.Token <= mark.Token { // nothing to raise
		if err := guard.Decide(guard.SameOrNewer, mark, claim); err != nil || !waits {
			return mark, err
		}
	}
	if err := sqlkit.Interrupted(ctx, d.raise(ctx, claim, true)); err != nil {
		return markOf(claim, err), err
	}
	return guard.Mark{Token: claim.Token, LeaseID: claim.LeaseID}, nil
}

// Mark implements [guard.Store]: the resource's mark in schema fencepost. A
// standby is refused with ErrUnavailable.
func (d *DB[Tx]) Mark(ctx context.Context, resource string) (guard.Mark, error) {
	if err := guard.ValidateResource(resource); err != nil {
		return guard.Mark{}, err
	}
	mark, _, err := d.mark(ctx, "read mark", guard.Claim{Resource: resource})
	return mark, err
}

// mark returns the mark of the claim's resource, and whether COMMITs wait for a synchronous
// standby.
func (d *DB[Tx]) mark(ctx context.Context, op string, claim guard.Claim) (mark guard.Mark, waits bool, err error) {
	if err := sqlkit.Ended(ctx, op, claim); err != nil {
		return guard.Mark{}, false, err
	}
	var standby bool
	var token, floor *int64
	var lease *string
	_, err = d.row(ctx, markSQL, []any{claim.Resource}, new(any), &standby, &token, &lease, &floor, &waits)
	switch {
	case err != nil:
		return guard.Mark{}, false, sqlkit.SchemaFailure(op, claim, err)
	case standby:
		return guard.Mark{}, false, guard.Unavailable(op, claim, sqlkit.ErrStandby)
	case token != nil && lease != nil:
		return guard.Mark{Token: guard.Token(*token), LeaseID: *lease}, waits, nil
	case floor != nil:
		return guard.Mark{Token: guard.Token(*floor), Floor: true}, false, nil
	}
	return guard.Mark{}, false, nil
}

// Retire implements [guard.Store] on the marks of schema fencepost. Marks are
// timestamped by the server's clock when they are raised. It does not know the
// issuer, and refuses, with ErrMarkAhead, only a floor above which there is no
// token: use sqladmin's Admin.Retire where any enforcer may have made up a token.
func (d *DB[Tx]) Retire(ctx context.Context, before time.Time) (guard.Retired, error) {
	const op = "retire"
	if err := sqlkit.Ended(ctx, op, guard.Claim{}); err != nil {
		return guard.Retired{}, err
	}
	var count, floor int64
	err := d.once(ctx, op, guard.Claim{}, true, statement{sql: retireSQL, args: []any{before, int32(d.opts.RaiseTimeout.Milliseconds())}, dest: []any{&count, &floor}})
	switch {
	case pgerr.State(err) == pgerr.MarkAhead:
		return guard.Retired{}, sqlkit.Rejected(guard.ReasonMarkAhead, sqlkit.OfferedIn(err), err)
	case err != nil:
		return guard.Retired{}, err
	}
	return guard.Retired{Count: count, Floor: guard.Token(floor)}, nil
}
