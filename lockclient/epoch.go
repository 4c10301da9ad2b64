package lockclient

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/fencepost-go/fencepost/guard"

	"github.com/jackc/pgx/v5"
)

// epochShift is where the epoch begins in a token.
const epochShift = 40

// Epoch says on which server the leases are and what is known of it. A token's
// bits from 40 up are the epoch under which it was granted, or a higher one;
// the epoch is Base + Timeline - 1, so it is 0, and tokens are small numbers,
// on a server that never failed over and was never restored.
type Epoch struct {
	// Number is the epoch, 0 to 8,388,607.
	Number int64
	// Base is the part of it that is stored, in fencepost.epoch.
	Base int64
	// Timeline is the server's WAL timeline, 1 unless it was promoted or
	// restored to a point in time; 0 if it cannot be seen.
	Timeline int64
	// SystemIdentifier names the database cluster; empty if it cannot be seen.
	SystemIdentifier string
	// Floor is the token that every later grant is above, on any resource;
	// [guard.NoToken] if there is none.
	Floor guard.Token
	// Hidden says what the server does not show, in its own words; empty if
	// everything can be seen. Where the timeline is hidden, a failover is not
	// noticed; where the identifier is, a copy is told by its object numbers
	// alone; where the server's start is, another server is noticed on new
	// connections only, not behind a pooler. Then call [Client.RaiseEpoch] after
	// every failover and restore.
	Hidden string
}

// Epoch asks the server for its epoch and, like the first acquire on a server,
// sees to it that tokens are granted in it. It costs a round trip, and one more
// on a client that has not acquired anything. Watch Epoch.Hidden where failovers
// must be noticed.
//
// Errors: guard.ErrUnavailable, also for a server that is a standby.
func (c *Client) Epoch(ctx context.Context) (Epoch, error) {
	return c.lift(ctx, "epoch", lift{})
}

// RaiseEpoch puts every later token, on every resource, above all that this
// server or one that had the same data can have issued. It is for what the
// server cannot see; the package documentation says when, under "Failover and
// restore". When it returns, no grant under an older epoch is under way.
//
// It may be called at any time and costs nobody a lease. Calling it again
// raises the epoch again; there is room for eight million. It keeps grants and
// renewals out for a moment, see [Client.Purge], and waits up to
// Options.OpTimeout for that moment.
//
// Errors: guard.ErrUnavailable (not raised: among other reasons because an open
// transaction has a lock on fencepost.leases), guard.ErrOutcomeUnknown (call it
// again) and, for a client with a namespace, guard.ErrInvalid.
func (c *Client) RaiseEpoch(ctx context.Context) (Epoch, error) {
	if err := c.namespace.everything("RaiseEpoch"); err != nil {
		return Epoch{}, err
	}
	return c.lift(ctx, "raise epoch", lift{more: 1, exclusive: true})
}

// lift says what is to be raised: the epoch to at least epoch and by more, the
// floor to at least floor.
type lift struct {
	epoch, more, floor int64
	// exclusive waits for the grants under way.
	exclusive bool
}

// operator is what an issuer does for operators, beside leases. An attempt that
// did not get a lock is a guard.ErrUnavailable that passes ([contention]).
type operator interface {
	lift(ctx context.Context, op string, l lift) (Epoch, error)
	// advance raises the resource's token to at least above; held if somebody
	// holds a lower one.
	advance(ctx context.Context, resource string, above guard.Token) (reached guard.Token, held *HeldError, err error)
	// idle returns resources after the given one that have been free for so
	// long, and where to go on; "" at the end.
	idle(ctx context.Context, after string, free time.Duration) (resources []string, last string, err error)
	// purge deletes those of the resources that still are.
	purge(ctx context.Context, resources []string, free, wait time.Duration) (Purged, error)
}

func (c *Client) operator(ctx context.Context, op string) (operator, error) {
	if err := c.usable(ctx); err != nil {
		return nil, guard.Unavailable(op, guard.Claim{}, err)
	}
	if o, ok := c.issuer.(operator); ok {
		return o, nil
	}
	return nil, guard.Unavailable(op, guard.Claim{}, errNoOperator)
}

// lift repeats while locks are in the way.
func (c *Client) lift(ctx context.Context, op string, l lift) (Epoch, error) {
	o, err := c.operator(ctx, op)
	if err != nil {
		return Epoch{}, err
	}
	began := c.clock()
	for attempt := 0; ; attempt++ {
		epoch, err := o.lift(ctx, op, l)
		if err == nil || !contention(err) || c.clock()-began >= c.set.opTimeout || !c.pause(ctx, backoff(attempt)) {
			return epoch, withCause(ctx, err)
		}
	}
}

var _ operator = (*postgres)(nil)

// instance is a server that was entered: it does not change its timeline or its
// cluster while its postmaster runs, nor the table while it has this number.
type instance struct {
	Epoch
	started time.Time // zero if that is hidden
	leases  uint32
}

// enteredKey marks connections to servers that hide when they were started.
const enteredKey = "fencepost.lockclient.entered"

// enter returns the server on which leases may be granted. Every statement that
// grants compares it on the server, because behind a pooler or a proxy one
// connection may come to another server.
func (p *postgres) enter(ctx context.Context, conn *pgx.Conn, lockTimeout string) (*instance, error) {
	if err := p.checkSchema(ctx, conn); err != nil {
		return nil, err
	}
	if in := p.entered.Load(); in != nil && (!in.started.IsZero() || conn.PgConn().CustomData()[enteredKey] == p) {
		return in, nil
	}
	return p.reenter(ctx, conn, lift{}, lockTimeout)
}

const enterSQL = `SELECT o_epoch, o_base, o_timeline, o_system_identifier, o_started, o_leases::bigint, o_floor, o_moved, o_raised, o_hidden
FROM fencepost.enter_epoch($1::bigint, $2::bigint, $3::bigint, $4::boolean, $5::text::integer)`

func (p *postgres) reenter(ctx context.Context, conn *pgx.Conn, l lift, lockTimeout string) (*instance, error) {
	var in instance
	var timeline *int64
	var system, hidden *string
	var started *time.Time
	var leases int64
	var floor int64
	var moved, raised bool
	statement := enterSQL
	if p.definer {
		statement = strings.Replace(enterSQL, "enter_epoch", "operator_epoch", 1)
	}
	err := conn.QueryRow(ctx, statement, l.epoch, l.more, l.floor, l.exclusive, lockTimeout).
		Scan(&in.Number, &in.Base, &timeline, &system, &started, &leases, &floor, &moved, &raised, &hidden)
	if err != nil {
		return nil, err
	}
	in.leases, in.Floor = uint32(leases), guard.Token(floor)
	if timeline != nil {
		in.Timeline = *timeline
	}
	if system != nil {
		in.SystemIdentifier = *system
	}
	if started != nil {
		in.started = *started
	}
	if hidden != nil {
		in.Hidden = *hidden
		p.hidden.Do(func() {
			p.events.operated(ctx, slog.LevelWarn, "lock_epoch_hidden", slog.Int64("epoch", in.Number), slog.String("hidden", in.Hidden))
		})
	}
	if raised {
		p.events.operated(ctx, slog.LevelInfo, "lock_epoch_raised", slog.Int64("epoch", in.Number),
			slog.Int64("timeline", in.Timeline), slog.String("floor", in.Floor.String()), slog.Bool("restored", moved))
	}
	conn.PgConn().CustomData()[enteredKey] = p
	p.entered.Store(&in)
	return &in, nil
}

func (p *postgres) lift(ctx context.Context, op string, l lift) (epoch Epoch, err error) {
	err = p.on(ctx, p.pool, p.set.opTimeout, func(ctx context.Context, conn *pgx.Conn, lockTimeout string) error {
		if err := p.checkSchema(ctx, conn); err != nil {
			return harmless(err)
		}
		if l.exclusive {
			lockTimeout = milliseconds(defaultTableWait)
		}
		in, err := p.reenter(ctx, conn, l, lockTimeout)
		if err == nil {
			epoch = in.Epoch
		}
		return err
	})
	if l == (lift{}) {
		err = harmless(err) // a question, whatever it set right beside
	}
	return epoch, failure(op, guard.Claim{}, err)
}
