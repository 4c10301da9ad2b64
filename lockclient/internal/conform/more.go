package conform

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient"
)

const short = 30 * time.Second // passes by Harness.Pass

func expire(ctx context.Context, h Harness) error {
	l, err := h.A.TryAcquire(ctx, "r", &lockclient.AcquireOptions{TTL: short})
	if err != nil {
		return err
	}
	h.Pass(short + 20*time.Millisecond)
	if l.Valid() {
		return errors.New("valid after its end")
	}
	<-l.Done()
	next, err := try(ctx, h.B, "r", "")
	if err != nil {
		return err
	}
	return errors.Join(want(l.Err(), lockclient.ErrLeaseLost), want(l.Renew(ctx), lockclient.ErrLeaseLost),
		that(next.Token() > l.Token(), "token %v after %v", next.Token(), l.Token()),
		that(!h.Wire("renew", l.Claim()) && !h.Wire("release", l.Claim()), "the server took a request of the former holder"), l.Release(ctx))
}

func again(ctx context.Context, h Harness) error {
	opts := &lockclient.AcquireOptions{TTL: short, LeaseID: "mine"}
	l, err := h.A.TryAcquire(ctx, "r", opts)
	if err != nil {
		return err
	}
	h.Pass(short + 20*time.Millisecond)
	next, err := h.A.TryAcquire(ctx, "r", opts)
	if err != nil {
		return err
	}
	return that(next.Token() > l.Token(), "token %v after %v", next.Token(), l.Token())
}

func waitRelease(ctx context.Context, h Harness) error {
	l, err := try(ctx, h.A, "r", "")
	if err != nil {
		return err
	}
	type got struct {
		lease *lockclient.Lease
		err   error
	}
	outcomes := make(chan got, 4)
	for _, c := range []*lockclient.Client{h.A, h.B, h.A, h.B} {
		go func() {
			lease, err := c.Acquire(ctx, "r", &lockclient.AcquireOptions{TTL: ttl})
			outcomes <- got{lease, err}
		}()
	}
	if err := awaited(ctx, h, "r"); err != nil {
		return err
	}
	if len(outcomes) > 0 {
		return errors.New("granted while it was held")
	}
	last := l
	for range 4 {
		if err := last.Release(ctx); err != nil {
			return err
		}
		o := <-outcomes
		if o.err != nil || o.lease.Token() <= last.Token() {
			return fmt.Errorf("after token %v: %+v", last.Token(), o)
		}
		last = o.lease
	}
	return nil
}

// awaited returns when a waiter rests, and so has been told who has the lease.
func awaited(ctx context.Context, h Harness, resource string) error {
	for !h.Awaited(resource) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}

func waitEnds(ctx context.Context, h Harness) error {
	l, err := try(ctx, h.A, "r", "")
	if err != nil {
		return err
	}
	mine := errors.New("mine")
	ending, cancel := context.WithCancelCause(ctx)
	told := make(chan error, 1)
	go func() {
		told <- awaited(ctx, h, "r")
		cancel(mine)
	}()
	_, err = h.B.Acquire(ending, "r", &lockclient.AcquireOptions{TTL: ttl})
	var held *lockclient.HeldError
	return errors.Join(<-told, want(err, mine), that(errors.As(err, &held) && held.Token == l.Token(), "no holder in %v", err),
		that(l.Valid(), "the lease is over: %v", l.Err()))
}

func hold(ctx context.Context, h Harness) error {
	mine := errors.New("mine")
	var inner context.Context
	var inside error
	err := h.A.Hold(ctx, "r", &lockclient.HoldOptions{TTL: ttl}, func(ctx context.Context) error {
		inner = ctx
		claim, ok := guard.ClaimFrom(ctx)
		lease, held := guard.LeaseFrom(ctx)
		_, err := try(ctx, h.B, "r", "")
		inside = errors.Join(want(err, lockclient.ErrHeld),
			that(ok && held && lease.Valid() && claim == lease.Claim() && claim.Resource == "r" && claim.Token > 0, "the context carries %+v", claim))
		return mine
	})
	_, next := try(ctx, h.B, "r", "")
	return errors.Join(inside, want(err, mine), want(context.Cause(inner), lockclient.ErrReleased), next)
}

func holdLost(ctx context.Context, h Harness) error {
	mine := errors.New("mine")
	var cause error
	err := h.A.Hold(ctx, "r", &lockclient.HoldOptions{TTL: ttl, RenewInterval: 20 * time.Millisecond}, func(ctx context.Context) error {
		h.Cut("r")
		<-ctx.Done()
		cause = context.Cause(ctx)
		return mine
	})
	return errors.Join(want(cause, lockclient.ErrLeaseLost), want(err, lockclient.ErrLeaseLost), want(err, mine))
}

func holdPanics(ctx context.Context, h Harness) (err error) {
	func() {
		defer func() {
			if got := recover(); got != "mine" {
				err = fmt.Errorf("recovered %v", got)
			}
		}()
		h.A.Hold(ctx, "r", &lockclient.HoldOptions{TTL: ttl}, func(context.Context) error { panic("mine") })
	}()
	_, next := try(ctx, h.B, "r", "")
	return errors.Join(err, next)
}

func invalid(ctx context.Context, h Harness) error {
	_, noResource := try(ctx, h.A, "", "")
	_, badID := try(ctx, h.A, "r", "a\nb")
	_, noTTL := h.A.TryAcquire(ctx, "r", nil)
	_, shortTTL := h.A.Acquire(ctx, "r", &lockclient.AcquireOptions{TTL: lockclient.MinTTL - 1})
	noFn := h.A.Hold(ctx, "r", &lockclient.HoldOptions{TTL: ttl}, nil)
	var all error
	for _, err := range []error{noResource, badID, noTTL, shortTTL, noFn} {
		all = errors.Join(all, want(err, guard.ErrInvalid))
	}
	_, err := try(ctx, h.B, "r", "")
	return errors.Join(all, err)
}

func closed(ctx context.Context, h Harness) error {
	l, err := try(ctx, h.A, "r", "")
	if err != nil {
		return err
	}
	h.A.Close()
	h.A.Close()
	_, err = try(ctx, h.A, "other", "")
	_, waited := h.A.Acquire(ctx, "other", &lockclient.AcquireOptions{TTL: ttl})
	return errors.Join(want(err, guard.ErrUnavailable), want(waited, guard.ErrUnavailable), want(l.Renew(ctx), guard.ErrUnavailable))
}

func reclaim(ctx context.Context, h Harness) error {
	before := h.B.Stats().Other
	l, err := h.A.TryAcquire(ctx, "reclaimed", &lockclient.AcquireOptions{TTL: short})
	if err != nil {
		return err
	}
	h.Pass(short + 20*time.Millisecond)
	<-l.Done()
	next, err := try(ctx, h.B, "reclaimed", "")
	if err != nil {
		return err
	}
	if err := next.Release(ctx); err != nil {
		return err
	}
	if _, err = try(ctx, h.B, "reclaimed", ""); err != nil {
		return err
	}
	after := h.B.Stats().Other
	return that(after.Granted == before.Granted+2 && after.Reclaimed == before.Reclaimed+1, "%+v, then %+v", before, after)
}
