package lockclient

import (
	"context"
	"sync"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Client issues leases to one owner. It is made by [New], is safe for
// concurrent use and is meant to live as long as the process: one client holds
// any number of leases.
type Client struct {
	issuer issuer
	owner  string
	set    settings
	clock  clock
	events events

	namespace pglease.Namespace

	waiters waiters
	renewal latencies // of all leases
	jumps   *jumps    // nil but in tests

	mu         sync.Mutex
	closed     chan struct{}
	isClosed   bool
	background sync.WaitGroup // releases that nobody waits for
}

// New returns a client whose leases are owned by owner: 1 to 128 bytes of
// UTF-8 without control characters, by which people recognise the holder, such
// as a host name with a process ID. It tells nobody apart: lease IDs do that.
// opts may be nil.
//
// Leases are acquired on pool. Renewals and releases use connections of their
// own with pool's configuration, at most Options.RenewConns, opened when first
// needed. New sends nothing; the schema is checked at the first acquire.
//
// The error is an InvalidError (errors.Is guard.ErrInvalid) that names the
// field.
func New(pool *pgxpool.Pool, owner string, opts *Options) (*Client, error) {
	if pool == nil {
		return nil, guard.Invalid("pool", "nil", "must not be nil")
	}
	if err := guard.ValidateOwner(owner); err != nil {
		return nil, err
	}
	set, err := opts.settings()
	if err != nil {
		return nil, err
	}
	clock := systemClock()
	pg, err := newPostgres(pool, set, clock, opts.logger())
	if err != nil {
		return nil, err
	}
	if opts == nil {
		opts = &Options{}
	}
	ev := events{logger: opts.Logger, observer: opts.Observer}
	pg.listenWith(pool, owner, opts.Logger)
	return newClient(pg, owner, set, clock, ev), nil
}

func newClient(i issuer, owner string, set settings, clock clock, ev events) *Client {
	ev.stats = newStats(set.statPrefixes)
	return &Client{
		issuer: i, owner: owner, set: set, clock: clock, events: ev, closed: make(chan struct{}),
		namespace: set.namespace,
	}
}

// Close waits for releases under way and closes the client's own connections;
// the pool stays the caller's. It releases no lease: a lease that is still held
// can no longer be renewed or released and runs out by its TTL, so let every
// [Client.Hold] return first. A waiting [Client.Acquire] returns
// guard.ErrUnavailable, and so does every later call. Closing twice is allowed.
func (c *Client) Close() {
	c.mu.Lock()
	if !c.isClosed {
		c.isClosed = true
		close(c.closed)
	}
	c.mu.Unlock()
	c.background.Wait()
	c.issuer.close()
}

// spawn runs f beside the caller; false if the client is closed.
func (c *Client) spawn(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isClosed {
		return false
	}
	c.background.Go(f)
	return true
}

// usable says why nothing can be sent; nil if it can.
func (c *Client) usable(ctx context.Context) error {
	select {
	case <-c.closed:
		return errClientClosed
	default:
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}
