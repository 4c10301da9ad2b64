package lockclient

import (
	"context"
	"errors"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"

	"github.com/jackc/pgx/v5"
)

var _ bell = (*postgres)(nil)

func (p *postgres) subscribe(resource string) *subscription {
	return p.listener.subscribe(pglease.Topic(resource))
}
func (p *postgres) unsubscribe(s *subscription) { p.listener.unsubscribe(s) }
func (p *postgres) listening() <-chan struct{}  { return p.listener.listening() }

func (p *postgres) watch(ctx context.Context, r request) (held *HeldError, marked bool, err error) {
	err = p.On(ctx, p.Pool, p.OpTimeout, func(ctx context.Context, conn *pgx.Conn, lockTimeout string) error {
		var token, remaining int64
		h := &HeldError{Resource: r.resource}
		err := conn.QueryRow(ctx, watchSQL, r.resource, r.leaseID, wakeFor.Microseconds(), lockTimeout).
			Scan(&token, &h.LeaseID, &h.Owner, &h.ExpiresAt, &remaining, &marked)
		if errors.Is(err, pgx.ErrNoRows) {
			held, marked = nil, false
			return nil
		}
		h.Token, h.Remaining = guard.Token(token), time.Duration(remaining)*time.Microsecond
		held = h
		return err
	})
	return held, marked, pglease.Failure("acquire", r.claim(), err)
}

// release frees the lease and wakes a waiter. A notification that cannot be
// sent, since the server's queue of them is full or the role may not, must not
// keep the lease: then it is freed without one.
func (p *postgres) release(ctx context.Context, claim guard.Claim, timeout time.Duration) (freed bool, err error) {
	err = p.On(ctx, p.own, timeout, func(ctx context.Context, conn *pgx.Conn, lockTimeout string) error {
		var token int64
		var synced string
		var quiet bool
		args := []any{claim.Resource, claim.LeaseID, int64(claim.Token), lockTimeout}
		err := conn.QueryRow(ctx, releaseSQL, append(args, pglease.Topic(claim.Resource))...).Scan(&token, &synced, &quiet)
		if pg := pglease.Error(err); pg != nil && pglease.SaidNo(pg) && !pglease.Passes(pg) {
			err = conn.QueryRow(ctx, quietReleaseSQL, args...).Scan(&token, &synced)
		}
		if freed = err == nil; errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
	return freed, pglease.Failure("release", claim, err)
}
