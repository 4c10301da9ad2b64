package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
	"github.com/fencepost-go/fencepost/sqlfence"

	"github.com/jackc/pgx/v5/pgxpool"
)

// happen makes every kind of event once, for real.
func happen(ctx context.Context, pool *pgxpool.Pool, observer guard.Observer) error {
	fence, err := sqlfence.Pgx(pool, &sqlfence.Options{Observer: observer})
	if err != nil {
		return err
	}
	if err := errors.Join(lockclient.Migrate(ctx, pool), fence.Migrate(ctx)); err != nil {
		return err
	}
	client, err := lockclient.New(pool, "worker-1", &lockclient.Options{Observer: observer})
	if err != nil {
		return err
	}
	defer client.Close(ctx)
	const resource = "billing-close"
	minute := &lockclient.AcquireOptions{TTL: time.Minute}

	// Renewed and released.
	lease, err := client.TryAcquire(ctx, resource, minute)
	if err != nil {
		return err
	}
	if err := errors.Join(lease.Renew(ctx), lease.Release(ctx)); err != nil {
		return err
	}
	// Runs out, is lost to its holder and granted again. It must outlast the
	// round trip in which it is granted, on a busy machine too.
	short, err := client.TryAcquire(ctx, resource, &lockclient.AcquireOptions{TTL: 2 * time.Second})
	if err != nil {
		return err
	}
	<-short.Done()
	cut, err := client.Acquire(ctx, resource, minute)
	if err != nil {
		return err
	}
	// Refused, because it is held.
	if _, err := client.TryAcquire(ctx, resource, minute); !errors.Is(err, lockclient.ErrHeld) {
		return fmt.Errorf("held, and granted again: %w", err)
	}
	// Cut by an operator, who raises the burned claim at the fence.
	operator, err := lockadmin.New(pool, &lockadmin.Options{Observer: observer})
	if err != nil {
		return err
	}
	unlocked, err := operator.ForceUnlock(ctx, resource, "Ada", "worker-1 hangs", nil)
	if err != nil {
		return err
	}
	if _, err := fence.Admit(ctx, unlocked.Burned); err != nil {
		return err
	}
	if err := cut.Renew(ctx); !errors.Is(err, lockclient.ErrForceUnlocked) {
		return fmt.Errorf("cut, and still held: %w", err)
	}
	// The stale writer, and one who presents another lease's token.
	if _, err := fence.Admit(ctx, cut.Claim()); !errors.Is(err, guard.ErrStale) {
		return fmt.Errorf("a stale claim was admitted: %w", err)
	}
	forged := unlocked.Burned
	forged.LeaseID = "forged"
	if _, err := fence.Admit(ctx, forged); !errors.Is(err, guard.ErrConflict) {
		return fmt.Errorf("one token under two leases was admitted: %w", err)
	}
	return nil
}
