package conform

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient"
)

func forceUnlock(ctx context.Context, h Harness) error {
	o := h.B.Operator()
	l, err := try(ctx, h.A, "cut", "")
	if err != nil {
		return err
	}
	type got struct {
		lease *lockclient.Lease
		err   error
	}
	waiting := make(chan got, 1)
	go func() {
		lease, err := h.B.Acquire(ctx, "cut", &lockclient.AcquireOptions{TTL: ttl})
		waiting <- got{lease, err}
	}()
	if err := awaited(ctx, h, "cut"); err != nil {
		return err
	}
	done, err := o.ForceUnlock(ctx, "cut", "Ada", "hangs", &lockclient.ForceUnlockOptions{ExpectedLeaseID: l.ID()})
	if err != nil {
		return err
	}
	next := <-waiting
	if next.err != nil {
		return next.err
	}
	err = l.Renew(ctx)
	var cut *lockclient.ForceUnlockedError
	if !errors.As(err, &cut) || cut.Actor != "Ada" || cut.Reason != "hangs" {
		return fmt.Errorf("the holder learns %v", err)
	}
	return errors.Join(want(err, lockclient.ErrLeaseLost), want(err, lockclient.ErrForceUnlocked),
		that(done.Burned.Token == l.Token()+1 && done.Burned.Resource == "cut" && done.Burned.LeaseID != l.ID(), "burned %+v", done.Burned),
		that(done.Cut.LeaseID == l.ID() && done.Cut.State == lockclient.StateHeld && done.Cut.Name == "cut", "cut %+v", done.Cut),
		that(next.lease.Token() > done.Burned.Token, "token %v after %v was burned", next.lease.Token(), done.Burned.Token),
		next.lease.Renew(ctx))
}

func forceUnlockRefused(ctx context.Context, h Harness) error {
	o := h.A.Operator()
	old, err := try(ctx, h.A, "refused", "")
	if err != nil {
		return err
	}
	if err := old.Release(ctx); err != nil {
		return err
	}
	l, err := try(ctx, h.A, "refused", "")
	if err != nil {
		return err
	}
	_, unknown := o.ForceUnlock(ctx, "unknown", "a", "b", nil)
	_, spaces := o.ForceUnlock(ctx, "refused", "a", "  ", nil)
	_, changed := o.ForceUnlock(ctx, "refused", "a", "b", &lockclient.ForceUnlockOptions{ExpectedLeaseID: old.ID()})
	if err := errors.Join(want(unknown, guard.ErrNotFound), want(spaces, guard.ErrInvalid), want(changed, lockclient.ErrLeaseChanged), l.Renew(ctx)); err != nil {
		return err
	}
	// Repeated under its ID, it finds what it did and cuts nobody else.
	mine := &lockclient.ForceUnlockOptions{RequestID: "request of " + l.ID()}
	first, err := o.ForceUnlock(ctx, "refused", "a", "b", mine)
	if err != nil {
		return err
	}
	next, err := try(ctx, h.B, "refused", "")
	if err != nil {
		return err
	}
	again, err := o.ForceUnlock(ctx, "refused", "a", "b", mine)
	if err != nil {
		return err
	}
	return errors.Join(that(again.Repeated && !first.Repeated && again.Burned == first.Burned, "%+v, then %+v", first, again), next.Renew(ctx))
}

func operatorsLists(ctx context.Context, h Harness) error {
	o := h.A.Operator()
	for _, name := range []string{"list:b", "list:a", "list:c", "list;", "listen"} {
		if _, err := try(ctx, h.A, name, ""); err != nil {
			return err
		}
		h.Pass(time.Millisecond) // so that one is held for longer than the next
	}
	if _, err := o.ForceUnlock(ctx, "list:c", "Ada", "to see it", nil); err != nil {
		return err
	}
	names := func(opts lockclient.ListOptions) (s string) {
		for info, err := range o.All(ctx, "list:", &opts) {
			if err != nil {
				return err.Error()
			}
			s += info.Name + "=" + string(info.State) + " "
		}
		return s
	}
	h.Pass(short)
	long, err := o.LongHeld(ctx, short/2, &lockclient.LongHeldOptions{Prefix: "list:"})
	if err != nil {
		return err
	}
	_, missing := o.Get(ctx, "list:d")
	audit, err := o.Audit(ctx, "list:", time.Time{}, time.Time{}, nil)
	if err != nil {
		return err
	}
	held := names(lockclient.ListOptions{States: []lockclient.LeaseState{lockclient.StateHeld}})
	return errors.Join(
		that(names(lockclient.ListOptions{Limit: 1}) == "list:a=held list:b=held list:c=free ", "listed %s", names(lockclient.ListOptions{Limit: 1})),
		that(held == "list:a=held list:b=held ", "held are %s", held),
		that(len(long) == 2 && long[0].Name == "list:b", "long held are %+v", long),
		that(len(audit.Records) == 1 && audit.Records[0].Resource == "list:c" && audit.Records[0].Reason == "to see it" && audit.Next == "", "audit %+v", audit),
		want(missing, guard.ErrNotFound))
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
