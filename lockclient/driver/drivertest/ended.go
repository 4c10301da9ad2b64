package drivertest

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

// earlier is for a lease that ended, and one that was released.
func earlier(ctx context.Context, t testing.TB, h Harness) error {
	a, b := h.Issuer(t), h.Issuer(t)
	for _, expires := range []bool{false, true} {
		old, err := h.acquire(ctx, a, name("earlier"), name("id"))
		if err != nil {
			return err
		}
		if expires {
			h.Pass(h.TTL + h.TTL/4)
		} else if _, err := a.Release(ctx, old); err != nil {
			return err
		}
		next, err := h.acquire(ctx, b, old.Resource, old.LeaseID)
		if err != nil {
			return err
		}
		if next.Token <= old.Token {
			return fmt.Errorf("token %v after %v", next.Token, old.Token)
		}
		if got := h.renew(ctx, a, old)[0]; got.State != driver.Over {
			return fmt.Errorf("a renewal of token %v while the ID has %v: %+v", old.Token, next.Token, got)
		}
		if freed, err := a.Release(ctx, old); freed || err != nil {
			return fmt.Errorf("a release of token %v while the ID has %v: %v, %w", old.Token, next.Token, freed, err)
		}
		if err := h.held(ctx, a, next); err != nil {
			return err
		}
	}
	return nil
}

func unsent(ctx context.Context, t testing.TB, h Harness) error {
	a := h.Issuer(t)
	warm, err := h.acquire(ctx, a, name("unsent"), name("id")) // there is a connection
	if err != nil {
		return err
	}
	resource := name("unsent")
	if err := h.free(ctx, a, resource); err != nil { // what the engine keeps of it is there
		return err
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	for range 20 { // an issuer that looks at whatever is ready sends some
		r := h.ask(resource, name("id"))
		g, err := a.Acquire(ended, r)
		if !errors.Is(err, guard.ErrUnavailable) && !errors.Is(err, guard.ErrOutcomeUnknown) {
			return fmt.Errorf("with a context that has ended: %+v, %v", g, err)
		}
		if got := h.renew(ctx, a, warm)[0]; got.State != driver.Extended { // goes after it in the same connection
			return fmt.Errorf("renewed: %+v", got)
		}
		if err := h.free(ctx, a, r.Resource); err != nil {
			return err
		}
	}
	return nil
}
