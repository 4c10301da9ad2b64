package guardtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// races are about many callers, on every handle: on one resource, and of Retire among
// callers that raise.
var races = []testCase{
	{name: "P1/no-stale-admission-among-racing-raises", run: racingRaises},
	{name: "P4/racing-leases-of-one-token-have-one-winner", run: racingLeases},
	{name: "P1/no-mark-is-forgotten-among-many", run: manyMarks},
	{name: "P1/no-stale-admission-while-retiring", run: racingRetire},
}

// callers is how many race each other.
const callers = 8

// race runs callers that start together and returns their errors. The first
// error ends the context of the others.
func race(ctx context.Context, call func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		wg    sync.WaitGroup
		start = make(chan struct{})
		once  sync.Once
		first error
	)
	for i := range callers {
		wg.Go(func() {
			<-start
			if err := recovered(func() error { return call(ctx, i) }); err != nil {
				once.Do(func() { first = err }) // the others' errors may only follow from the cancel
				cancel()
			}
		})
	}
	close(start)
	wg.Wait()
	return first
}

// attempt presents c through the i-th handle, and looks at the mark of what was admitted
// through the other handle: the claim's or above it. may is the one refusal that is right;
// any other error is returned.
func (e *env) attempt(ctx context.Context, i int, c guard.Claim, may guard.Reason) (admitted bool, _ error) {
	_, err := e.handle(i).Admit(ctx, c)
	if r := guard.ReasonOf(err); err != nil {
		if r == may {
			return false, nil
		}
		return false, fmt.Errorf("Admit(%s) = %w (%s); want it admitted, or refused as %q", show(c), err, r, may)
	}
	got, err := e.handle(i+1).Mark(ctx, c.Resource)
	if err != nil {
		return true, fmt.Errorf("Admit(%s) was admitted, and then its mark could not be read: %w", show(c), err)
	}
	if got.Token < c.Token || got.Token == c.Token && !got.Floor && got.LeaseID != c.LeaseID {
		return true, fmt.Errorf("Admit(%s) was admitted, and then %s has %s", show(c), quote(c.Resource), showMark(got))
	}
	return true, nil
}

// admitted and stale are attempts whose verdict does not depend on the race.
func (e *env) admitted(ctx context.Context, i int, c guard.Claim) error {
	_, err := e.attempt(ctx, i, c, guard.ReasonNone)
	return err
}

func (e *env) stale(ctx context.Context, i int, c guard.Claim) error {
	ok, err := e.attempt(ctx, i, c, guard.ReasonStale)
	if ok {
		err = fmt.Errorf("Admit(%s) was admitted; want it refused as stale", show(c))
	}
	return err
}

func (e *env) marked(ctx context.Context, i int, resource string, want guard.Mark) error {
	got, err := e.handle(i).Mark(ctx, resource)
	if err == nil && got != want {
		err = fmt.Errorf("Mark(%s) is %s; want %s", quote(resource), showMark(got), showMark(want))
	}
	return err
}

// highest is the highest token that is known to have been admitted.
type highest struct{ n atomic.Int64 }

func (h *highest) load() guard.Token { return guard.Token(h.n.Load()) }

func (h *highest) raise(t guard.Token) {
	for {
		old := h.n.Load()
		if int64(t) <= old || h.n.CompareAndSwap(old, int64(t)) {
			return
		}
	}
}

// shared is a claim that is the same for every caller with the token, so that
// equal tokens do not conflict.
func shared(name string, t guard.Token) guard.Claim {
	return guard.Claim{Resource: name, Token: t, LeaseID: "lease of " + t.String()}
}

// pause lets the callers of a store that is fast and never waits overlap in
// varying ways, instead of one making all its calls within a time slice.
func pause(rng *rand.Rand) {
	if rng.IntN(4) == 0 {
		time.Sleep(time.Duration(rng.Int64N(int64(100 * time.Microsecond))))
	}
}

// offer presents c, which is admitted or stale, and checks the verdict against what was
// acknowledged before the call began.
func (e *env) offer(ctx context.Context, i int, acked *highest, c guard.Claim) error {
	low := acked.load()
	ok, err := e.attempt(ctx, i, c, guard.ReasonStale)
	switch {
	case err != nil || !ok:
		return err
	case c.Token < low:
		return fmt.Errorf("Admit(%s) was admitted, though it began after token %d was", show(c), low)
	}
	acked.raise(c.Token)
	return nil
}

// racingRaises presents tokens close to the mark, so that every call is a close call, and
// reads the mark in between: no reader sees it fall.
func racingRaises(ctx context.Context, e *env) error {
	var acked highest
	if err := race(ctx, func(ctx context.Context, i int) error {
		rng, seen := e.rand(i), guard.NoToken
		for range e.Rounds {
			pause(rng)
			if err := e.offer(ctx, i, &acked, shared(resource, max(1, acked.load()-4+guard.Token(rng.IntN(8))))); err != nil {
				return err
			}
			low := max(seen, acked.load())
			got, err := e.handle(rng.IntN(2)).Mark(ctx, resource)
			switch {
			case err != nil:
				return fmt.Errorf("reading the mark: %w", err)
			case got.Token < low:
				return fmt.Errorf("a reader got %s, though token %d was seen or admitted before the call began", showMark(got), low)
			case got != (guard.Mark{}) && got != markOf(shared(resource, got.Token)):
				return fmt.Errorf("a reader got %s, which nobody claimed", showMark(got))
			}
			seen = got.Token
		}
		return nil
	}); err != nil {
		return err
	}
	// The mark is the highest of all: no raise was lost, none was invented.
	return errors.Join(e.marked(ctx, 0, resource, markOf(shared(resource, acked.load()))), e.marked(ctx, 1, resource, markOf(shared(resource, acked.load()))))
}

// racingLeases presents one token under four leases, each from two callers: both callers of
// one lease are admitted, and nobody else. A new resource and a raise of an old one take
// different paths.
func racingLeases(ctx context.Context, e *env) error {
	for round := range 10 {
		for _, c := range []guard.Claim{named(fmt.Sprint("new ", round), 1), claim(guard.Token(round+1), "")} {
			under := func(i int) guard.Claim {
				return guard.Claim{Resource: c.Resource, Token: c.Token, LeaseID: fmt.Sprint("lease ", i/2)}
			}
			var won [callers]bool
			if err := race(ctx, func(ctx context.Context, i int) (err error) {
				won[i], err = e.attempt(ctx, i, under(i), guard.ReasonConflict)
				return err
			}); err != nil {
				return err
			}
			winner := -1
			for i := 0; i < callers; i += 2 {
				switch {
				case won[i] != won[i+1]:
					return fmt.Errorf("one of two callers of %s was admitted", show(under(i)))
				case won[i] && winner >= 0:
					return fmt.Errorf("%s was admitted, and another lease too", show(under(i)))
				case won[i]:
					winner = i
				}
			}
			if winner < 0 {
				return fmt.Errorf("no lease was admitted under token %d of %s", c.Token, quote(c.Resource))
			}
			if err := e.marked(ctx, round, c.Resource, markOf(under(winner))); err != nil {
				return err
			}
		}
	}
	return nil
}

// manyMarks raises a few marks, then has many other claims admitted, half of them for new
// resources, and presents lower tokens to all: a store that evicts or wraps around has
// forgotten some of them.
func manyMarks(ctx context.Context, e *env) error {
	each := 60 * e.Rounds / callers
	name := func(caller, n int) string { return fmt.Sprint(resource, " ", caller, " ", n/2) }
	const early = -2 // raised by each caller before all others
	claims := func(call func(ctx context.Context, i int, c guard.Claim) error, token func(n int) guard.Token, from, to, step int) error {
		return race(ctx, func(ctx context.Context, i int) error {
			for n := from; n < to; n += step {
				if err := call(ctx, i, named(name(i, n), token(n))); err != nil {
					return err
				}
			}
			return nil
		})
	}
	raised := func(n int) guard.Token { return guard.Token(10 + n&1) }
	lower := func(int) guard.Token { return 9 }
	if err := claims(e.admitted, raised, early, early+1, 1); err != nil {
		return err
	}
	if err := claims(e.admitted, raised, 0, each, 1); err != nil {
		return err
	}
	return errors.Join(claims(e.stale, lower, early, early+1, 1), claims(e.stale, lower, 0, each, 20))
}

// racingRetire repeatedly deletes every mark while callers offer new tokens and
// tokens a little older than those acknowledged. A mark that is deleted before
// the floor is raised admits one of the older tokens, and so does a mark that
// was raised between being chosen and being deleted. A floor that a call returned is
// not lowered for those that begin afterwards.
func racingRetire(ctx context.Context, e *env) error {
	var (
		acked       [3]highest
		next, floor highest // one issuer for all, as there is one floor for all
		name        = func(r int) string { return fmt.Sprint("resource ", r) }
	)
	if err := race(ctx, func(ctx context.Context, i int) error {
		rng := e.rand(i)
		for n := range 2 * e.Rounds {
			pause(rng)
			if n%12 == i*3%12 { // each caller at its own steps
				low := floor.load()
				got, err := e.handle(i).Retire(ctx, time.Now().Add(time.Hour))
				switch {
				case err != nil:
					return fmt.Errorf("retiring: %w", err)
				case got.Floor < low:
					return fmt.Errorf("retiring returned the floor %d, though %d had been returned before the call began", got.Floor, low)
				}
				floor.raise(got.Floor)
			}
			t := next.load() - guard.Token(rng.IntN(8))
			if rng.IntN(3) == 0 {
				t = guard.Token(next.n.Add(1))
			}
			r := rng.IntN(len(acked))
			if err := e.offer(ctx, i, &acked[r], shared(name(r), max(1, t))); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	for r := range acked {
		if t := acked[r].load(); t > 1 {
			if err := e.stale(ctx, r, shared(name(r), t-1)); err != nil {
				return fmt.Errorf("token %d had been admitted: %w", t, err)
			}
		}
	}
	return nil
}

// endedContext makes every call with a context that was cancelled, and with one whose deadline
// is past. What says unavailable has written nothing.
func endedContext(ctx context.Context, e *env) error {
	if err := e.admitted(ctx, 0, claim(10, "a")); err != nil {
		return err
	}
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	late, cancel := context.WithDeadline(ctx, time.Now().Add(-time.Second))
	cancel()
	known := true // no outcome was unknown so far
	for _, ended := range []context.Context{cancelled, late} {
		_, reading := e.handle(0).Mark(ended, resource)
		_, retiring := e.handle(0).Retire(ended, time.Now().Add(time.Hour))
		calls := map[string]error{"Mark": reading, "Retire": retiring}
		for _, c := range []guard.Claim{claim(10, "a"), claim(11, "b"), {Resource: "new", Token: 1}} {
			_, calls["Admit("+show(c)+")"] = e.handle(0).Admit(ended, c)
		}
		for call, err := range calls {
			if err := failed(call, err, call == "Mark"); err != nil {
				return err
			}
			known = known && guard.ReasonOf(err) == guard.ReasonUnavailable
		}
		if !known {
			continue
		}
		if err := errors.Join(e.marked(ctx, 1, resource, markOf(claim(10, "a"))), e.marked(ctx, 1, "new", guard.Mark{})); err != nil {
			return fmt.Errorf("after calls that said unavailable: %w", err)
		}
	}
	return nil
}

// failed returns what is wrong with the error of a call whose context has ended. A call that
// only reads cannot have an unknown outcome.
func failed(call string, err error, reads bool) error {
	switch r := guard.ReasonOf(err); {
	case r == guard.ReasonUnavailable, r == guard.ReasonOutcomeUnknown && !reads:
		return nil
	case err == nil:
		return fmt.Errorf("%s succeeded with a context that had ended", call)
	default:
		return fmt.Errorf("%s = %w (%s); want guard.ErrUnavailable if nothing was sent, guard.ErrOutcomeUnknown if a write was", call, err, r)
	}
}

// cutHalfway cancels calls at random moments. Whatever a call reports must be
// true, and still true a little later: a call must not report unavailable if
// its write was still in flight when it returned.
func cutHalfway(ctx context.Context, e *env) error {
	rng, usual := e.rand(0), time.Second
	for i := range 3 { // the first call may also have opened a connection
		started := time.Now()
		if err := e.admitted(ctx, 0, claim(guard.Token(i+1), "a")); err != nil {
			return err
		}
		usual = min(usual, time.Since(started))
	}
	usual = max(usual, 200*time.Microsecond)

	var said [24]guard.Reason
	at := func(i int) guard.Claim { return named(fmt.Sprint(resource, i), guard.Token(i+1)) }
	for i := range said {
		short, cancel := context.WithTimeout(ctx, time.Duration(rng.Int64N(int64(usual)*3/2)))
		_, err := e.handle(0).Admit(short, at(i))
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
		if err := e.marked(ctx, 1, at(i).Resource, want); err != nil {
			return fmt.Errorf("Admit(%s) said %q (none is success): %w", show(at(i)), r, err)
		}
	}
	return nil
}
