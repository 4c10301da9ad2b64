package lockclient

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// postgres is the issuer. Grants run on the caller's pool; renewals and
// releases on a small pool of its own, so that a caller who keeps all of his
// connections cannot starve them.
type postgres struct {
	*pglease.Server
	own   *pgxpool.Pool
	clock clock

	listener *listener
}

var _ issuer = (*postgres)(nil)

func newPostgres(pool *pgxpool.Pool, set settings, clock clock, logger *slog.Logger) (*postgres, error) {
	config := pool.Config()
	config.MaxConns = int32(set.renewConns)
	config.MinConns, config.MinIdleConns = 0, 0 // connects when first needed
	// A ping would cost every renewal a round trip. A dead connection costs the
	// attempt, which is repeated.
	config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	// A connect that hangs keeps its place in the pool.
	if t := config.ConnConfig.ConnectTimeout; t <= 0 || t > set.opTimeout {
		config.ConnConfig.ConnectTimeout = set.opTimeout
	}
	own, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return nil, guard.Unavailable("new", guard.Claim{}, err)
	}
	server := &pglease.Server{Pool: pool, OpTimeout: set.opTimeout, LockTimeout: set.lockTimeout, Grace: set.grace, Logger: logger}
	return &postgres{Server: server, own: own, clock: clock}, nil
}

func (p *postgres) close() {
	p.listener.close()
	p.own.Close()
}

func (p *postgres) acquire(ctx context.Context, r request) (a answer, err error) {
	if p.Entered() == nil { // apart, since it need not fit into the TTL
		err = p.On(ctx, p.Pool, p.OpTimeout, func(ctx context.Context, conn *pgx.Conn, lockTimeout string) error {
			_, err := p.Enter(ctx, conn, lockTimeout)
			return pglease.Harmless(err)
		})
		if err != nil {
			return a, pglease.Failure("acquire", r.claim(), err)
		}
	}
	err = p.On(ctx, p.Pool, r.timeout, func(ctx context.Context, conn *pgx.Conn, lockTimeout string) error {
		in, err := p.Enter(ctx, conn, lockTimeout)
		if err != nil {
			return pglease.Harmless(err)
		}
		statement, args := acquireSQL, []any{r.resource, r.leaseID, r.owner, r.ttl.Microseconds(), lockTimeout}
		if !in.Started.IsZero() {
			statement, args = acquireThereSQL, append(args, in.Started, int64(in.Leases))
		}
		var token int64
		var expiresAt time.Time
		var synced *string
		var reclaimed *bool
		a.sent = p.clock()
		err = conn.QueryRow(ctx, statement, args...).Scan(&token, &a.acquiredAt, &expiresAt, &synced, &reclaimed)
		if errors.Is(err, pgx.ErrNoRows) {
			if a.held, err = p.holder(ctx, conn, r); err == nil && a.held == nil {
				// Free by now, or this is no longer the server that was entered.
				_, err = p.Reenter(ctx, conn, pglease.Lift{}, lockTimeout)
			}
			return pglease.Harmless(err)
		}
		a.granted, a.token, a.reclaimed = err == nil, guard.Token(token), pglease.Of(reclaimed)
		return err
	})
	return a, pglease.Failure("acquire", r.claim(), err)
}

// holder says who has the lease; nil if nobody has it any more. It fails where
// the lease was refused for the isolation level.
func (p *postgres) holder(ctx context.Context, conn *pgx.Conn, r request) (*HeldError, error) {
	var isolation string
	var token, remaining *int64
	var leaseID, owner *string
	var expiresAt *time.Time
	err := conn.QueryRow(ctx, holderSQL, r.resource, r.leaseID).
		Scan(&isolation, &token, &leaseID, &owner, &expiresAt, &remaining)
	switch {
	case err != nil:
		return nil, fmt.Errorf("refused, and the holder could not be read: %w", err)
	case isolation != "read committed":
		return nil, fmt.Errorf("the connection's isolation level is %q and leases are granted under \"read committed\" alone: "+
			"set default_transaction_isolation in the pool's connection parameters", isolation)
	case token == nil:
		return nil, nil
	}
	return &HeldError{
		Resource: r.resource, Owner: *owner, Token: guard.Token(*token), LeaseID: *leaseID,
		ExpiresAt: *expiresAt, Remaining: time.Duration(*remaining) * time.Microsecond,
	}, nil
}

func (p *postgres) renew(ctx context.Context, claim guard.Claim, ttl, timeout time.Duration) (sent time.Duration, held bool, err error) {
	err = p.On(ctx, p.own, timeout, func(ctx context.Context, conn *pgx.Conn, lockTimeout string) error {
		var token int64
		var synced *string
		sent = p.clock()
		err := conn.QueryRow(ctx, renewSQL, claim.Resource, claim.LeaseID, int64(claim.Token), ttl.Microseconds(), lockTimeout).
			Scan(&token, &synced)
		if held = err == nil; errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
	return sent, held, pglease.Failure("renew", claim, err)
}

var _ explainer = (*postgres)(nil)

// forceUnlockedSQL says who ended a lease; no row, or a refusal, if nobody is
// known to have. $1 resource, $2 lease ID, $3 token.
const forceUnlockedSQL = `SELECT o_actor, o_reason, o_at FROM fencepost.force_unlocked($1::text, $2::text, $3::bigint) WHERE o_actor IS NOT NULL`

func (p *postgres) why(ctx context.Context, claim guard.Claim) (cause error) {
	err := p.On(ctx, p.own, whyTimeout, func(ctx context.Context, conn *pgx.Conn, _ string) error {
		var cut ForceUnlockedError
		err := conn.QueryRow(ctx, forceUnlockedSQL, claim.Resource, claim.LeaseID, int64(claim.Token)).Scan(&cut.Actor, &cut.Reason, &cut.At)
		cause = &cut
		return err
	})
	if err != nil {
		return nil // nobody, or it cannot be told
	}
	return cause
}
