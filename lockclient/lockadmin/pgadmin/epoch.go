package pgadmin

import (
	"context"
	"log/slog"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"

	"github.com/jackc/pgx/v5"
)

// Epoch asks the server for its epoch and, like the first acquire on a server,
// makes sure that tokens are granted in it. Monitor Epoch.Hidden where
// failovers must be noticed.
//
// Errors: guard.ErrUnavailable, also if the server is a standby.
func (o *Operator) Epoch(ctx context.Context) (lockadmin.Epoch, error) {
	return o.raise(ctx, "epoch", pglease.Raise{})
}

// RaiseEpoch puts every later token, on every resource, above all that this
// server or one that had the same data can have issued. It is for what the
// server cannot detect; the package documentation says when, under "Failover
// and restore". When it returns, no grant under an older epoch is in progress.
//
// It may be called at any time and nobody loses a lease. Calling it again
// raises the epoch again; there is room for eight million. It keeps grants and
// renewals out for a moment, see [Operator.Purge], and waits up to
// Options.OpTimeout for that moment.
//
// Errors: guard.ErrUnavailable (not raised: among other reasons because an open
// transaction has a lock on fencepost.leases), and guard.ErrOutcomeUnknown (call it
// again).
func (o *Operator) RaiseEpoch(ctx context.Context) (lockadmin.Epoch, error) {
	return o.raise(ctx, "raise epoch", pglease.Raise{More: 1, Exclusive: true})
}

// raise raises what r says, and retries while locks are in the way.
func (o *Operator) raise(ctx context.Context, op string, r pglease.Raise) (epoch lockadmin.Epoch, err error) {
	err = o.retry(ctx, false, func() error {
		err := o.do(ctx, func(ctx context.Context, conn *pgx.Conn, lockTimeout string) error {
			if err := o.server.CheckSchema(ctx, conn); err != nil {
				return pglease.Harmless(err)
			}
			if r.Exclusive {
				lockTimeout = pglease.Milliseconds(defaultTableWait)
			}
			in, err := o.server.Reenter(ctx, conn, r, lockTimeout)
			if err == nil {
				epoch = lockadmin.Epoch(in.Epoch)
			}
			return err
		})
		if r == (pglease.Raise{}) {
			err = pglease.Harmless(err) // a query, whatever it corrected on the side
		}
		return pglease.Failure(op, guard.Claim{}, err)
	})
	return epoch, err
}

// Advance raises the issuer above the tokens that another system has issued for
// the resource: every later grant's token is above the given one. Call it before
// the first grant, with at least the highest token that the resource may have
// admitted. It never lowers a token, and does nothing if the token is already
// that high.
//
// It returns what every later grant is above: the given token or more. The
// change is on disk when it returns, and calling it again is harmless. A token
// of 2^40 or more is in a later epoch; then all resources continue from that
// epoch, because otherwise lost tokens could not be distinguished from new ones after a
// failover.
//
// Errors: guard.ErrInvalid (also above [lockadmin.MaxAdvance]; nothing was sent);
// lockclient.ErrHeld (a [*lockclient.HeldError]: somebody holds the resource
// with a token that is below the given one, and raising it would end that
// lease; nothing was written there); guard.ErrUnavailable and
// guard.ErrOutcomeUnknown.
func (o *Operator) Advance(ctx context.Context, resource string, above guard.Token) (reached guard.Token, err error) {
	if err := guard.ValidateResource(resource); err != nil {
		return guard.NoToken, err
	}
	if err := validateAdvance(above); err != nil {
		return guard.NoToken, err
	}
	err = o.retry(ctx, false, func() error {
		if reached, err = o.advance(ctx, resource, above); err != nil || reached >= above {
			return err
		}
		held, err := query(ctx, o, "advance", o.scanLease, getSQL, resource)
		switch {
		case err != nil:
			return err
		case len(held) > 0 && held[0].State == lockadmin.StateHeld:
			now := held[0]
			return &lockclient.HeldError{
				Resource: resource, Owner: now.Owner, Token: now.Token, LeaseID: now.LeaseID, ExpiresAt: now.ExpiresAt, Remaining: now.Remaining,
			}
		}
		return guard.Unavailable("advance", guard.Claim{Resource: resource}, errRaced) // the holder changed between two statements
	})
	if err != nil {
		return guard.NoToken, err
	}
	o.log(ctx, slog.LevelInfo, "lock_advanced", slog.String("resource", resource), slog.String("above", reached.String()))
	return reached, nil
}

// AdvanceFloor is [Operator.Advance] for every resource, including those that
// the issuer does not know: every later grant's token, on any resource, is above
// the given one. Call it before guard.Store.Retire, with the highest mark that
// will be retired, so that no later grant is below the store's floor.
//
// Nobody loses a lease; held leases keep their tokens. When it returns, no grant
// at or below the floor is in progress. It returns the floor. It keeps grants
// and renewals out for a moment, see [Operator.Purge], and waits up to
// Options.OpTimeout for that moment.
//
// Errors: guard.ErrInvalid (also above [lockadmin.MaxAdvance]), guard.ErrUnavailable (not raised: among other reasons because an
// open transaction has a lock on fencepost.leases) and guard.ErrOutcomeUnknown (calling again is harmless).
func (o *Operator) AdvanceFloor(ctx context.Context, above guard.Token) (guard.Token, error) {
	if err := validateAdvance(above); err != nil {
		return guard.NoToken, err
	}
	epoch, err := o.raise(ctx, "advance floor", pglease.Raise{Epoch: int64(above >> pglease.EpochShift), Floor: int64(above), Exclusive: true})
	if err != nil {
		return guard.NoToken, err
	}
	o.log(ctx, slog.LevelInfo, "lock_advanced", slog.String("above", epoch.Floor.String()))
	return epoch.Floor, nil
}

func validateAdvance(above guard.Token) error {
	if err := above.Validate(); err != nil {
		return err
	}
	if above > lockadmin.MaxAdvance {
		return guard.Invalid("token", above.String(), "must be at most "+lockadmin.MaxAdvance.String()+", so that there is room for epochs")
	}
	return nil
}

// advanceSQL raises the token of a resource that nobody holds, and returns the one
// that every later grant there is above. $1 resource, $2 token, $3 lock_timeout in
// milliseconds.
const advanceSQL = `SELECT fencepost.advance_lease($1::pg_catalog.text, $2::bigint, $3::pg_catalog.text::integer)`

func (o *Operator) advance(ctx context.Context, resource string, above guard.Token) (reached guard.Token, err error) {
	err = o.do(ctx, func(ctx context.Context, conn *pgx.Conn, lockTimeout string) error {
		in, err := o.server.Enter(ctx, conn, lockTimeout)
		if epoch := int64(above >> pglease.EpochShift); err == nil && in.Number < epoch {
			_, err = o.server.Reenter(ctx, conn, pglease.Raise{Epoch: epoch}, lockTimeout)
		}
		if err != nil {
			return pglease.Harmless(err)
		}
		return conn.QueryRow(ctx, advanceSQL, resource, int64(above), lockTimeout).Scan((*int64)(&reached))
	})
	return reached, pglease.Failure("advance", guard.Claim{Resource: resource}, err)
}
