package lockclient

import (
	"context"
	"errors"
	"log/slog"

	"github.com/fencepost-go/fencepost/guard"

	"github.com/jackc/pgx/v5"
)

// MaxAdvance is the highest token that [Client.Advance] and
// [Client.AdvanceFloor] take, 2^62-1. Times in nanoseconds, Snowflake IDs and
// ZooKeeper transaction IDs are below it; what is above is left for epochs.
const MaxAdvance guard.Token = 1<<62 - 1

// Advance lifts the issuer over the tokens that another system has issued for
// the resource: every later grant's token is above the given one. Call it before
// the first grant, with at least the highest token that the resource may have
// admitted. It never lowers, and nothing happens if the token is that high.
//
// It returns what every later grant is above: the given token or more. It is on
// disk when it returns, and calling it again is harmless. A token of 2^40 or
// more is in a later epoch; then all resources go on from that epoch, because
// after a failover lost tokens could not be told from new ones otherwise.
//
// Errors: guard.ErrInvalid (also above [MaxAdvance]; nothing was sent);
// [ErrHeld] (a [*HeldError]: somebody holds the resource with a token that is
// not above, and raising it would end that lease; nothing was written there);
// guard.ErrUnavailable and guard.ErrOutcomeUnknown.
func (c *Client) Advance(ctx context.Context, resource string, above guard.Token) (guard.Token, error) {
	resource, err := c.namespace.resource(resource)
	if err != nil {
		return guard.NoToken, err
	}
	if err := validateAdvance(above); err != nil {
		return guard.NoToken, err
	}
	o, err := c.operator(ctx, "advance")
	if err != nil {
		return guard.NoToken, err
	}
	began := c.clock()
	for attempt := 0; ; attempt++ {
		reached, held, err := o.advance(ctx, resource, above)
		switch {
		case err == nil && held != nil:
			return guard.NoToken, held
		case err == nil && reached.Valid():
			c.events.operated(ctx, slog.LevelInfo, "lock_advanced", slog.String("resource", resource),
				slog.String("ownerId", c.owner), slog.String("above", reached.String()))
			return reached, nil
		case err == nil: // the holder changed between two statements
			err = guard.Unavailable("advance", guard.Claim{Resource: resource}, errRaced)
		case !contention(err):
			return guard.NoToken, withCause(ctx, err)
		}
		if c.clock()-began >= c.set.opTimeout || !c.pause(ctx, backoff(attempt)) {
			return guard.NoToken, withCause(ctx, err)
		}
	}
}

// AdvanceFloor is [Client.Advance] for every resource, also those that the
// issuer does not know: every later grant's token, on any resource, is above
// the given one. It is the step before guard.Store.Retire: with the highest mark
// that will be retired, so that no later grant is below the store's floor.
//
// It costs nobody a lease; leases that are held keep their tokens. When it
// returns, no grant at or below the floor is under way. It returns the floor.
// It keeps grants and renewals out for a moment, see [Client.Purge], and waits
// up to Options.OpTimeout for that moment.
//
// Errors: guard.ErrInvalid (also above [MaxAdvance], and for a client with a
// namespace), guard.ErrUnavailable (not lifted: among other reasons because an
// open transaction has a lock on fencepost.leases) and guard.ErrOutcomeUnknown (calling again is harmless).
func (c *Client) AdvanceFloor(ctx context.Context, above guard.Token) (guard.Token, error) {
	if err := c.namespace.everything("AdvanceFloor"); err != nil {
		return guard.NoToken, err
	}
	if err := validateAdvance(above); err != nil {
		return guard.NoToken, err
	}
	epoch, err := c.lift(ctx, "advance floor", lift{epoch: int64(above >> epochShift), floor: int64(above), exclusive: true})
	if err != nil {
		return guard.NoToken, err
	}
	c.events.operated(ctx, slog.LevelInfo, "lock_advanced", slog.String("ownerId", c.owner), slog.String("above", epoch.Floor.String()))
	return epoch.Floor, nil
}

func validateAdvance(above guard.Token) error {
	if err := above.Validate(); err != nil {
		return err
	}
	if above > MaxAdvance {
		return guard.Invalid("token", above.String(), "must be at most "+MaxAdvance.String()+", so that there is room for epochs")
	}
	return nil
}

// advanceSQL raises the token of a resource that is free; no row means that it
// is high enough or that somebody has the resource. $1 resource, $2 token, $3
// lock_timeout in milliseconds. An expired lease's ID goes, since the token is
// no longer its own. Purge counts the row as used now.
const advanceSQL = `INSERT INTO fencepost.leases AS l (resource, token, expires_at)
SELECT $1::text, $2::bigint, clock_timestamp()
WHERE NOT EXISTS (SELECT FROM fencepost.leases h WHERE h.resource = $1::text
                  AND (h.token >= $2::bigint OR h.lease_id IS NOT NULL AND h.expires_at > clock_timestamp()))
  AND current_setting('transaction_isolation') = 'read committed'
  AND set_config('lock_timeout', $3::text, true) IS NOT NULL
ON CONFLICT (resource) DO UPDATE SET token = excluded.token, lease_id = NULL, expires_at = clock_timestamp()
WHERE l.token < excluded.token AND (l.lease_id IS NULL OR l.expires_at <= clock_timestamp())
RETURNING l.token,
  CASE WHEN current_setting('synchronous_commit') IN ('off', 'local') THEN set_config('synchronous_commit', 'on', true) END`

// operatorAdvanceSQL is advanceSQL as a function with its owner's rights.
const operatorAdvanceSQL = `SELECT r, NULL::text FROM fencepost.advance_lease($1::text, $2::bigint, $3::text::integer) AS r WHERE r IS NOT NULL`

// reachedSQL says what every later grant on the resource is above. $1 resource.
const reachedSQL = `SELECT coalesce(max(token), 0) FROM fencepost.leases WHERE resource IN ($1::text, '')`

func (p *postgres) advance(ctx context.Context, resource string, above guard.Token) (reached guard.Token, held *HeldError, err error) {
	err = p.on(ctx, p.pool, p.set.opTimeout, func(ctx context.Context, conn *pgx.Conn, lockTimeout string) error {
		in, err := p.enter(ctx, conn, lockTimeout)
		if epoch := int64(above >> epochShift); err == nil && in.Number < epoch {
			_, err = p.reenter(ctx, conn, lift{epoch: epoch}, lockTimeout)
		}
		if err != nil {
			return harmless(err)
		}
		var token int64
		var synced *string
		statement := advanceSQL
		if p.definer {
			statement = operatorAdvanceSQL
		}
		err = conn.QueryRow(ctx, statement, resource, int64(above), lockTimeout).Scan(&token, &synced)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		granted := err == nil
		if err := conn.QueryRow(ctx, reachedSQL, resource).Scan(&token); err != nil {
			if granted {
				return err // raised, but not known how far
			}
			return harmless(err)
		}
		if reached = guard.Token(token); granted || reached >= above {
			return nil
		}
		reached = guard.NoToken
		held, err = p.holder(ctx, conn, request{resource: resource})
		return harmless(err)
	})
	return reached, held, failure("advance", guard.Claim{Resource: resource}, err)
}
