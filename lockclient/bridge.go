package lockclient

import (
	"context"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/bridge"
)

func init() {
	bridge.New = func(i bridge.Issuer, owner string, options any, clock func() time.Duration) (any, func(), error) {
		opts, _ := options.(*Options)
		if err := guard.ValidateOwner(owner); err != nil {
			return nil, nil, err
		}
		set, err := opts.settings()
		if err != nil {
			return nil, nil, err
		}
		if opts == nil {
			opts = &Options{}
		}
		b := &bridged{Issuer: i, up: make(chan struct{})}
		c := newClient(b, owner, set, clock, events{logger: opts.Logger, observer: opts.Observer})
		c.jumps = newJumps()
		return c, c.jumps.jump, nil
	}
}

// bridged is an issuer of another package.
type bridged struct {
	bridge.Issuer
	up chan struct{}
}

var (
	_ issuer = (*bridged)(nil)
	_ bell   = (*bridged)(nil)
)

func (b *bridged) acquire(ctx context.Context, r request) (answer, error) {
	a, err := b.Acquire(ctx, bridge.Request{Resource: r.resource, Owner: r.owner, LeaseID: r.leaseID, TTL: r.ttl})
	return answer{granted: a.Granted, token: a.Token, acquiredAt: a.AcquiredAt, sent: a.Sent, held: heldError(r.resource, a.Held), reclaimed: a.Reclaimed}, err
}

func heldError(resource string, h *bridge.Held) *HeldError {
	if h == nil {
		return nil
	}
	return &HeldError{
		Resource: resource, Owner: h.Owner, Token: h.Token, LeaseID: h.LeaseID,
		ExpiresAt: h.ExpiresAt, Remaining: h.Remaining,
	}
}

func (b *bridged) renew(ctx context.Context, claim guard.Claim, ttl, _ time.Duration) (time.Duration, bool, error) {
	return b.Renew(ctx, claim, ttl)
}

func (b *bridged) release(ctx context.Context, claim guard.Claim, _ time.Duration) (bool, error) {
	return b.Release(ctx, claim)
}

func (b *bridged) watch(_ context.Context, r request) (*HeldError, bool, error) {
	held := heldError(r.resource, b.Holder(r.resource, r.leaseID))
	return held, held != nil, nil
}

func (b *bridged) subscribe(resource string) *subscription {
	s := &subscription{rung: make(chan struct{}, 1)}
	s.cancel = b.Subscribe(resource, s.ring)
	return s
}

func (b *bridged) unsubscribe(s *subscription) { s.cancel() }

// listening: every release is told, always.
func (b *bridged) listening() <-chan struct{} { return b.up }

func (b *bridged) close() {}
