package lockclient

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencepost-go/fencepost/guard"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// postgres is the issuer. Grants run on the caller's pool; renewals and
// releases on a small pool of its own, so that a caller who keeps all of his
// connections cannot starve them.
type postgres struct {
	pool    *pgxpool.Pool
	own     *pgxpool.Pool
	set     settings
	clock   clock
	checked atomic.Bool // the schema's version was right
	entered atomic.Pointer[instance]
	hidden  sync.Once // the warning about what the server hides
	events  events
	// definer has what operators do done by functions that have their owner's
	// rights, because the role may only read the tables.
	definer bool

	listener *listener
}

var _ issuer = (*postgres)(nil)

func newPostgres(pool *pgxpool.Pool, set settings, clock clock) (*postgres, error) {
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
	return &postgres{pool: pool, own: own, set: set, clock: clock}, nil
}

func (p *postgres) close() {
	p.listener.close()
	p.own.Close()
}

func (p *postgres) acquire(ctx context.Context, r request) (a answer, err error) {
	if p.entered.Load() == nil { // apart, since it need not fit into the TTL
		err = p.on(ctx, p.pool, p.set.opTimeout, func(ctx context.Context, conn *pgx.Conn, lockTimeout string) error {
			_, err := p.enter(ctx, conn, lockTimeout)
			return harmless(err)
		})
		if err != nil {
			return a, failure("acquire", r.claim(), err)
		}
	}
	err = p.on(ctx, p.pool, r.timeout, func(ctx context.Context, conn *pgx.Conn, lockTimeout string) error {
		in, err := p.enter(ctx, conn, lockTimeout)
		if err != nil {
			return harmless(err)
		}
		statement, args := acquireSQL, []any{r.resource, r.leaseID, r.owner, r.ttl.Microseconds(), lockTimeout}
		if !in.started.IsZero() {
			statement, args = acquireThereSQL, append(args, in.started, int64(in.leases))
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
				_, err = p.reenter(ctx, conn, lift{}, lockTimeout)
			}
			return harmless(err)
		}
		a.granted, a.token, a.reclaimed = err == nil, guard.Token(token), of(reclaimed)
		return err
	})
	return a, failure("acquire", r.claim(), err)
}

// checkSchema reads the schema's version until it was right once.
func (p *postgres) checkSchema(ctx context.Context, conn *pgx.Conn) error {
	if p.checked.Load() {
		return nil
	}
	var have int64
	err := conn.QueryRow(ctx, schema().VersionSQL()).Scan(&have)
	if pg := pgError(err); pg != nil && (pg.Code == "42P01" || pg.Code == "3F000") {
		return fmt.Errorf("%w: %w", checkVersion(0), err)
	}
	if err == nil {
		err = checkVersion(have)
	}
	if err == nil {
		p.checked.Store(true)
	}
	return err
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
	err = p.on(ctx, p.own, timeout, func(ctx context.Context, conn *pgx.Conn, lockTimeout string) error {
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
	return sent, held, failure("renew", claim, err)
}

// staleTries bounds how many broken connections in a row are put down to an
// idle pool whose server went away.
const staleTries = 3

// statement is one attempt on one connection.
type statement func(ctx context.Context, conn *pgx.Conn, lockTimeout string) error

// on runs a statement on a connection of pool, and on another one where the
// connection turned out to be broken before anything could be written.
func (p *postgres) on(ctx context.Context, pool *pgxpool.Pool, timeout time.Duration, run statement) error {
	for try := 1; ; try++ {
		broken, err := p.once(ctx, pool, timeout, run)
		if !broken || try == staleTries || ctx.Err() != nil || !nothingWritten(err) {
			return err
		}
	}
}

// once reports besides the error whether it comes from a connection that broke
// by itself. The wait for a connection is bounded apart from the statement: it
// is no part of the outcome.
func (p *postgres) once(ctx context.Context, pool *pgxpool.Pool, timeout time.Duration, run statement) (broken bool, err error) {
	wait, cancel := context.WithTimeout(ctx, p.set.opTimeout)
	conn, err := pool.Acquire(wait)
	cancel()
	if err != nil {
		return false, harmless(err)
	}
	defer conn.Release()
	linger, cancel := lingering(ctx, timeout, p.set.grace)
	defer cancel()
	err = run(linger, conn.Conn(), p.lockTimeout(ctx, timeout))
	return err != nil && conn.Conn().IsClosed() && linger.Err() == nil, err
}

// lockTimeout is in milliseconds, as the statements take it. The server is to
// give up before the client does, because then the outcome is known.
func (p *postgres) lockTimeout(ctx context.Context, timeout time.Duration) string {
	d := min(p.set.lockTimeout, timeout*3/4)
	if end, ok := ctx.Deadline(); ok {
		d = min(d, time.Until(end)+p.set.grace/2)
	}
	return milliseconds(d)
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(max(1, d.Milliseconds()), 10) }
