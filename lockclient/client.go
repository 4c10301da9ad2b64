package lockclient

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/inflight"
	"github.com/fencepost-go/fencepost/lockclient/internal/input"
	"github.com/fencepost-go/fencepost/lockclient/internal/pause"
	"github.com/fencepost-go/fencepost/lockclient/internal/report"
	"github.com/fencepost-go/fencepost/lockclient/internal/waiting"
)

// Client holds leases for one owner. Make one with [New]. It is
// safe for concurrent use and is meant to live as long as the process: one
// client holds any number of leases.
type Client struct {
	issuer    driver.Issuer
	limits    driver.Limits
	owner     string
	set       Options
	grace     time.Duration
	clock     func() time.Duration
	namespace input.Namespace
	// whereabouts is the metadata of leases without any; empty where there is no
	// room for it.
	whereabouts string

	waiters waiting.Queues
	keeper  keeper
	reports report.Queue // what the logger and the observer have not got yet

	open     context.Context // ends when Close begins
	shut     context.CancelFunc
	patience context.Context // ends when Close stops waiting
	giveUp   context.CancelFunc
	finish   func() error   // ends what the client has begun, once
	work     inflight.Count // what Close waits for: acquires, Holds and releases
}

// New returns a client of an issuer whose leases are owned by owner: 1 to 128 bytes
// of UTF-8 without control characters, by which people recognise the holder, such
// as a host name with a process ID. Holders of one name are told apart by their lease
// IDs. opts may be nil. New sends nothing, and the client closes the issuer.
//
// Package pglock has the issuer of PostgreSQL; etcdlock, zklock, redislock and
// lockhttp have others.
//
// The error is an InvalidError (errors.Is guard.ErrInvalid) that names the
// field.
func New(issuer driver.Issuer, owner string, opts *Options) (*Client, error) {
	if issuer == nil {
		return nil, guard.Invalid("issuer", "nil", "must not be nil")
	}
	if err := guard.ValidateOwner(owner); err != nil {
		return nil, err
	}
	set, namespace, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	c := &Client{
		issuer: issuer, limits: issuer.Limits(), owner: owner, set: set, namespace: namespace, grace: pause.Grace, clock: driver.Now,
	}
	// Other tenants, who are refused, see the metadata and must not learn of hosts.
	if namespace == "" && c.limits.MetadataBytes >= len(whereabouts()) {
		c.whereabouts = whereabouts()
	}
	c.keeper.c = c
	c.reports.Lost = c.eventsLost
	c.open, c.shut = context.WithCancel(context.Background())
	c.patience, c.giveUp = context.WithCancel(context.Background())
	c.finish = sync.OnceValue(func() error {
		c.keeper.close()
		return c.issuer.Close() // statements in flight end by their own timeouts
	})
	if own, ok := issuer.(driver.Clock); ok {
		c.clock = own.Now
	}
	return c, nil
}

// Close ends every [Client.Hold], waits until their functions have returned and their
// leases are released, and closes the issuer; the caller's pool stays open.
//
// The contexts of the functions end with [ErrClosed] as their cause. A request in flight
// gets its response, or ends by its own timeout, and a lease that it is granted is given back. A
// lease that is not in a Hold is neither renewed nor released: release it before. With
// PostgreSQL, [Lease.Release] also works after Close.
//
// If ctx ends first, Close stops waiting, and what is left can neither renew nor release.
// Without a deadline it gives up after ten minutes: a Hold's function that calls it
// waits for itself. Closing again waits for what is left.
//
// Errors: guard.ErrUnavailable, which wraps the cause of ctx, and the issuer's own.
func (c *Client) Close(ctx context.Context) error {
	c.shut()
	if _, bounded := ctx.Deadline(); !bounded {
		limited, cancel := context.WithTimeoutCause(ctx, closeTimeout, errCloseTimeout)
		defer cancel()
		ctx = limited
	}
	err := c.work.Drain(ctx)
	if err != nil {
		err = guard.Unavailable("close", guard.Claim{}, err)
	}
	c.giveUp()
	closed := make(chan error, 1)
	go func() { closed <- c.finish() }()
	select {
	case failed := <-closed:
		reporting, cancel := context.WithTimeout(ctx, reportTimeout)
		defer cancel()
		c.reports.Drain(reporting)
		return cmp.Or(err, failed)
	case <-ctx.Done():
		return guard.Unavailable("close", guard.Claim{}, context.Cause(ctx))
	}
}

// reportTimeout is how long Close waits for a logger or an observer that blocks.
const reportTimeout = time.Second

// closeTimeout is how long Close waits if its context does not say.
const closeTimeout = 10 * time.Minute

var errCloseTimeout = errors.New("what the client has begun did not end within ten minutes; call Close after Hold has returned, or with a deadline")

// unusable is the error of a call that sent nothing for a reason of usable.
func unusable(op string, claim guard.Claim, why error) error {
	if why == ErrClosed {
		return guard.Setup(op, claim, why)
	}
	return guard.Unavailable(op, claim, why)
}

// usable returns why nothing can be sent, or nil.
func (c *Client) usable(ctx context.Context) error {
	if c.open.Err() != nil {
		return ErrClosed
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}
