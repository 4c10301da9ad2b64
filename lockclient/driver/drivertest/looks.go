package drivertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

func watch(ctx context.Context, t testing.TB, h Harness) error {
	a, b, r := h.Issuer(t), h.Issuer(t), name("watch")
	claim, err := h.acquire(ctx, a, r, name("id"))
	if err != nil {
		return err
	}
	for _, id := range []string{"", name("id")} {
		w, err := b.Watch(ctx, driver.Watch{Resource: r, LeaseID: id}, func() {})
		if errors.Is(err, driver.ErrNoWatch) {
			return nil
		}
		if err != nil {
			return err
		}
		if w.Held == nil || w.Held.Token != claim.Token || w.Held.LeaseID != claim.LeaseID || w.Held.Remaining <= 0 {
			return fmt.Errorf("a watch under %q says %+v, held is %+v", id, w.Held, claim)
		}
		w.Stop()
		w.Stop()
	}
	return h.held(ctx, b, claim)
}

// found is for issuers that are a driver.Finder.
func found(ctx context.Context, t testing.TB, h Harness) error {
	a, b := h.Issuer(t), h.Issuer(t)
	finder, ok := b.(driver.Finder)
	if !ok {
		return nil
	}
	finds := func(leaseID string, want ...guard.Claim) error {
		got, err := finder.Find(ctx, leaseID)
		return errors.Join(err, that(slices.Equal(got, want), "under %s it finds %+v, want %+v", leaseID, got, want))
	}
	released, err := h.acquire(ctx, a, name("found"), name("id"))
	if err != nil {
		return err
	}
	expired, err := h.acquire(ctx, a, name("found"), name("id"))
	if err != nil {
		return err
	}
	if err := errors.Join(finds(released.LeaseID, released), finds(expired.LeaseID, expired), finds(name("nobody"))); err != nil {
		return err
	}
	if _, err := a.Release(ctx, released); err != nil {
		return err
	}
	if err := finds(released.LeaseID); err != nil {
		return fmt.Errorf("after its release: %w", err)
	}
	h.Pass(h.TTL + h.TTL/4)
	if err := finds(expired.LeaseID); err != nil {
		return fmt.Errorf("after its end: %w", err)
	}
	return nil
}
