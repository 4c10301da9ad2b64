package guardtest

import (
	"context"
	"fmt"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// failed reports whether a call whose context has ended may return err. A call
// that only reads cannot have an unknown outcome.
func failed(call string, err error, reads bool) error {
	switch r := guard.ReasonOf(err); {
	case r == guard.ReasonUnavailable, r == guard.ReasonOutcomeUnknown && !reads:
		return nil
	case err == nil:
		return fmt.Errorf("%s succeeded with a context that had ended", call)
	case reads:
		return fmt.Errorf("%s = %w (%s); want guard.ErrUnavailable", call, err, r)
	default:
		return fmt.Errorf("%s = %w (%s); want guard.ErrUnavailable if nothing was sent, guard.ErrOutcomeUnknown if something was", call, err, r)
	}
}

func endedContext(ctx context.Context, e *env) error {
	s := e.store()
	if err := admittedBy(ctx, s, claim(10, "a")); err != nil {
		return err
	}
	for _, ended := range endedContexts(ctx) {
		for _, c := range []guard.Claim{
			claim(10, "a"), claim(11, "b"), {Resource: "new", Token: 1},
		} {
			_, err := s.Admit(ended, c)
			if err := failed("Admit("+show(c)+")", err, false); err != nil {
				return err
			}
		}
		_, err := s.Mark(ended, resource)
		if err := failed("Mark", err, true); err != nil {
			return err
		}
		_, err = s.Retire(ended, future(e))
		if err := failed("Retire", err, false); err != nil {
			return err
		}
	}
	return nil
}

// endedContexts returns one context that was cancelled and one whose deadline
// is past.
func endedContexts(ctx context.Context) []context.Context {
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	late, cancel := context.WithDeadline(ctx, time.Now().Add(-time.Second))
	cancel()
	return []context.Context{cancelled, late}
}

// unavailableUnchanged checks that nothing was written when a store says so.
func unavailableUnchanged(ctx context.Context, e *env) error {
	s := e.store()
	if err := admittedBy(ctx, s, claim(10, "a")); err != nil {
		return err
	}
	for _, ended := range endedContexts(ctx) {
		if _, err := s.Retire(ended, future(e)); guard.ReasonOf(err) == guard.ReasonUnavailable {
			if err := hasMarkBy(ctx, s, resource, guard.Mark{Token: 10, LeaseID: "a"}); err != nil {
				return fmt.Errorf("after Retire = %s: %w", guard.ReasonUnavailable, err)
			}
		} else {
			return nil // the outcome is unknown, and so are the marks from here on
		}
		if _, err := s.Admit(ended, claim(11, "b")); guard.ReasonOf(err) == guard.ReasonUnavailable {
			if err := hasMarkBy(ctx, s, resource, guard.Mark{Token: 10, LeaseID: "a"}); err != nil {
				return fmt.Errorf("after Admit(%s) = %s: %w", show(claim(11, "b")), guard.ReasonUnavailable, err)
			}
		} else {
			return nil
		}
	}
	return nil
}

// cutHalfway cancels calls at random moments. Whatever a call reports must be
// true, and still true a little later: a call must not report unavailable if
// its write was still in flight when it returned.
func cutHalfway(ctx context.Context, e *env) error {
	s, rng := e.store(), e.rand(0)
	usual := time.Second
	for i := range 3 { // the first call may also have opened a connection
		started := time.Now()
		if err := admittedBy(ctx, s, claim(guard.Token(i+1), "a")); err != nil {
			return err
		}
		usual = min(usual, time.Since(started))
	}
	usual = max(usual, 200*time.Microsecond)

	const rounds = 24
	var said [rounds]guard.Reason
	at := func(i int) guard.Claim {
		return guard.Claim{Resource: fmt.Sprint(resource, i), Token: guard.Token(i + 1), LeaseID: "a"}
	}
	for i := range rounds {
		short, cancel := context.WithTimeout(ctx, time.Duration(rng.Int64N(int64(usual)*3/2)))
		_, err := s.Admit(short, at(i))
		cancel()
		said[i] = guard.ReasonOf(err)
		if err != nil {
			if err := failed("Admit("+show(at(i))+")", err, false); err != nil {
				return err
			}
		}
	}
	if err := sleep(ctx, min(10*usual, e.Margin)); err != nil {
		return err
	}
	for i, r := range said {
		want := markOf(at(i))
		switch r {
		case guard.ReasonOutcomeUnknown:
			continue
		case guard.ReasonUnavailable:
			want = guard.Mark{}
		}
		if err := hasMarkBy(ctx, s, at(i).Resource, want); err != nil {
			return fmt.Errorf("Admit(%s) said %q (none is success): %w", show(at(i)), r, err)
		}
	}
	return nil
}
