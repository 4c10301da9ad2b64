package main

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient"
)

// version is the work of one version of the service for a tenant.
type version func(ctx context.Context, tenant string) error

// querier is a connection or a transaction.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// old is the service as it was: it works under an advisory lock of a session.
func (s *service) old(ctx context.Context, tenant string) error {
	return s.underAdvisoryLock(ctx, tenant, func(conn querier) error { return s.add(ctx, conn, tenant) })
}

// both is the version of the rollout. The lease comes first: whoever waits for it
// needs no session. The advisory lock keeps old replicas out.
func (s *service) both(ctx context.Context, tenant string) error {
	return s.hold(ctx, tenant, func(ctx context.Context) error {
		return s.underAdvisoryLock(ctx, tenant, func(querier) error { return s.fenced(ctx, tenant) })
	})
}

// leased is the version that stays.
func (s *service) leased(ctx context.Context, tenant string) error {
	return s.hold(ctx, tenant, func(ctx context.Context) error { return s.fenced(ctx, tenant) })
}

func (s *service) hold(ctx context.Context, tenant string, work func(context.Context) error) error {
	name, err := names.Name(tenant)
	if err != nil {
		return err
	}
	return s.client.Hold(ctx, name, &lockclient.AcquireOptions{TTL: time.Minute}, work)
}

// fenced works in a transaction that commits only under the current claim.
func (s *service) fenced(ctx context.Context, tenant string) error {
	claim, _ := guard.ClaimFrom(ctx)
	return s.db.InTx(ctx, claim, func(ctx context.Context, tx pgx.Tx) error { return s.add(ctx, tx, tenant) })
}

// underAdvisoryLock works while a session of its own has the lock. A session that
// ends without unlocking gives the lock back.
func (s *service) underAdvisoryLock(ctx context.Context, tenant string, work func(conn querier) error) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock(hashtextextended($1, 0))", tenant); err != nil {
		return err
	}
	defer conn.Exec(context.WithoutCancel(ctx), "SELECT pg_advisory_unlock(hashtextextended($1, 0))", tenant)
	return work(conn)
}
