package drivertest

import (
	"context"
	"errors"
	"fmt"
	"testing"

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
