package lockclient

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/leasetest"
)

// TestAcquireAnswers is the table of the outcomes of sequences of answers. A
// grant that nobody may have got is released, but never while the same lease ID
// may yet be granted: that release could free the later grant.
func TestAcquireAnswers(t *testing.T) {
	for _, test := range []struct {
		answers  []string
		wait     bool
		given    string
		token    guard.Token
		want     error
		released int
	}{
		{answers: []string{"granted"}, token: 1},
		{answers: []string{"free", "free", "granted"}, token: 3},
		{answers: []string{"free"}, want: guard.ErrUnavailable},
		{answers: []string{"held"}, want: ErrHeld},
		{answers: []string{"spent"}, want: ErrLeaseIDSpent, given: "mine"},
		{answers: []string{"in use"}, want: guard.ErrInvalid, given: "mine"},
		{answers: []string{"lost", "spent"}, want: ErrLeaseIDSpent, given: "mine"},
		{answers: []string{"lost", "in use"}, want: guard.ErrOutcomeUnknown, given: "mine"},
		{answers: []string{"down"}, want: guard.ErrUnavailable},
		{answers: []string{"lost", "granted"}, token: 2},
		{answers: []string{"lost", "down", "down", "granted"}, token: 4},
		{answers: []string{"lost", "held"}, want: ErrHeld, released: 1},
		{answers: []string{"lost", "held"}, want: guard.ErrOutcomeUnknown, given: "mine"},
		{answers: []string{"lost"}, want: guard.ErrOutcomeUnknown, released: 1},
		{answers: []string{"lost", "down"}, want: guard.ErrOutcomeUnknown, released: 1},
		{answers: []string{"lost", "free"}, want: guard.ErrOutcomeUnknown, released: 1},
		{answers: []string{"lost"}, want: guard.ErrOutcomeUnknown, given: "mine"},
		{answers: []string{"late"}, want: guard.ErrUnavailable, released: 1},
		{answers: []string{"late"}, want: guard.ErrOutcomeUnknown, given: "mine"},
		{wait: true, answers: []string{"held", "held", "granted"}, token: 3},
		{wait: true, answers: []string{"lost", "held", "granted"}, token: 3},
		{wait: true, answers: []string{"held", "lost", "held", "lost", "granted"}, token: 5},
		{wait: true, answers: []string{"held", "in use"}, want: guard.ErrInvalid, given: "mine"},
		{wait: true, answers: []string{"held"}, want: ErrHeld},
		{wait: true, answers: []string{"lost", "held"}, want: ErrHeld, released: 1},
		{wait: true, answers: []string{"held", "down"}, want: guard.ErrUnavailable},
		{wait: true, answers: []string{"held", "lost"}, want: guard.ErrOutcomeUnknown, released: 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			i := &answering{}
			i.acquire = func(_ context.Context, r driver.Request) (driver.Grant, error) {
				n, _, _ := i.counts()
				switch says := said(test.answers, n-1); says {
				case "granted":
					return driver.Grant{Token: guard.Token(n), From: i.clock()}, nil
				case "late":
					return driver.Grant{Token: guard.Token(n), From: i.clock() - r.TTL}, nil
				case "held":
					return driver.Grant{}, heldBy7(r)
				case "free":
					return driver.Grant{}, &HeldError{Resource: r.Resource}
				case "spent":
					return driver.Grant{}, driver.ErrLeaseIDSpent
				case "in use":
					return driver.Grant{}, driver.LeaseIDInUse(r.LeaseID, "another")
				default:
					return driver.Grant{}, answer("acquire", r.Claim(), says, n-1)
				}
			}
			client := i.client(t, nil)
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			acquire := client.TryAcquire
			if test.wait {
				acquire = client.Acquire
			}
			lease, err := acquire(ctx, "r", &AcquireOptions{TTL: time.Hour, LeaseID: test.given})
			switch {
			case test.want != nil && (lease != nil || !errors.Is(err, test.want)):
				t.Errorf("%+v: got %v, %v", test, lease, err)
			case test.want == nil && (err != nil || lease.Token() != test.token):
				t.Errorf("%+v: got %v, %v", test, lease, err)
			}
			if unknown := errors.Is(err, guard.ErrOutcomeUnknown); err != nil && unknown != (test.want == guard.ErrOutcomeUnknown) {
				t.Errorf("%+v: unknown %t: %v", test, unknown, err)
			}
			if test.wait && test.want == ErrHeld && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%+v: why the wait ended is not in %v", test, err)
			}
			client.Close(context.Background())
			for _, claim := range i.released {
				if claim.Token != guard.NoToken { // it spends the lease ID
					t.Errorf("%+v: released %+v", test, claim)
				}
			}
			if len(i.released) != test.released {
				t.Errorf("%+v: released %v", test, i.released)
			}
			if lease != nil {
				lease.end(ErrReleased)
			}
		})
	}
}

// TestLateRenewal: an answer that comes after the deadline extends nothing,
// even if no timer has noticed the deadline.
func TestLateRenewal(t *testing.T) {
	var now atomic.Int64 // the client's renewals read it too
	client := simulate(t, simulation{func() time.Duration { return time.Duration(now.Load()) }}, nil)
	defer client.Close(t.Context())
	lease := newLease(t.Context(), client, new(request), guard.Claim{Resource: "r", Token: 1}, driver.Grant{AcquiredAt: time.Now()}, MaxTTL, MaxTTL, client.clock())
	lease.extend(2 * MaxTTL)
	if now.Store(int64(MaxTTL)); !lease.Valid() {
		t.Error("a renewal in time does not count")
	}
	lease.extend(MaxTTL) // an older answer
	if now.Store(int64(2*MaxTTL - 1)); !lease.Valid() {
		t.Error("an older answer took time away")
	}
	now.Store(int64(2 * MaxTTL))
	lease.extend(3 * MaxTTL)
	if lease.Valid() || !errors.Is(lease.Err(), ErrLeaseLost) {
		t.Error("a renewal brought the lease back")
	}
}

var errFirst, errLater = errors.New("the first"), errors.New("a later one")

// said is an answer of a list: the n-th, or the last one repeatedly.
func said(answers []string, n int) string { return answers[min(n, len(answers)-1)] }

// answer is the error of an answer: its cause is the first or a later one.
func answer(op string, claim guard.Claim, says string, n int) error {
	cause := errLater
	if n == 0 {
		cause = errFirst
	}
	switch says {
	case "lost":
		return guard.OutcomeUnknown(op, claim, cause)
	case "down":
		return guard.Unavailable(op, claim, cause)
	case "busy":
		return guard.Unavailable(op, claim, driver.ErrBusy)
	}
	return nil
}

// repeated is what a renewal or a release must do about a sequence of answers.
type repeated struct {
	answers []string
	want    error
	cause   error
	asks    int           // 0: many
	took    time.Duration // at least, if there are many; half a second more at most
	ends    time.Duration // when ctx ends; 0 is never
}

func (r repeated) check(t *testing.T, err error, asked int, took time.Duration) {
	t.Helper()
	if !errors.Is(err, r.want) || r.cause != nil && !errors.Is(err, r.cause) || r.want == nil && err != nil {
		t.Errorf("%+v: got %v", r, err)
	}
	if unknown := errors.Is(err, guard.ErrOutcomeUnknown); err != nil && unknown != (r.want == guard.ErrOutcomeUnknown) {
		t.Errorf("%+v: unknown %t: %v", r, unknown, err)
	}
	if r.cause == errFirst && errors.Is(err, errLater) {
		t.Errorf("%+v: also a later cause: %v", r, err)
	}
	if r.asks > 0 && asked != r.asks || r.asks == 0 && asked < 5 {
		t.Errorf("%+v: asked %d times", r, asked)
	}
	if r.asks == 0 && (took < r.took || took > r.took+500*time.Millisecond) {
		t.Errorf("%+v: took %v", r, took)
	}
}

// TestRenewRepeats: Renew repeats an attempt whose answer was lost until there
// is an answer, OpTimeout has passed, or ctx or the lease ends. The error is the
// first attempt's.
func TestRenewRepeats(t *testing.T) {
	const timeout = 2 * time.Second
	for _, test := range []repeated{
		{answers: []string{"renewed"}, asks: 1},
		{answers: []string{"down"}, want: guard.ErrUnavailable, cause: errFirst, asks: 1},
		{answers: []string{"lost", "renewed"}, asks: 2},
		{answers: []string{"lost", "down", "lost", "renewed"}, asks: 4},
		{answers: []string{"lost", "over"}, want: ErrLeaseLost, asks: 2},
		{answers: []string{"lost"}, want: guard.ErrOutcomeUnknown, cause: errFirst, took: timeout},
		{answers: []string{"lost", "down"}, want: guard.ErrOutcomeUnknown, cause: errFirst, took: timeout},
		{answers: []string{"lost"}, want: guard.ErrOutcomeUnknown, cause: context.DeadlineExceeded, took: time.Second, ends: time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			i := &answering{}
			i.renew = func(_ context.Context, renewals []driver.Renewal, results []driver.Renewed) {
				n := len(i.renewed) - 1
				switch says := said(test.answers, n); says {
				case "renewed":
					results[0] = driver.Renewed{State: driver.Extended, From: i.clock()}
				case "over":
					results[0] = driver.Renewed{State: driver.Over}
				default:
					results[0].Err = answer("renew", renewals[0].Claim, says, n)
				}
			}
			client := i.client(t, &Options{OpTimeout: timeout})
			lease := mustTry(t, client, "r", time.Minute)
			ctx := t.Context()
			if test.ends > 0 {
				limited, cancel := context.WithTimeout(ctx, test.ends)
				defer cancel()
				ctx = limited
			}
			began := time.Now()
			err := lease.Renew(ctx)
			test.check(t, err, len(i.renewed), time.Since(began))
			if lost := test.want == ErrLeaseLost; lost == lease.Valid() {
				t.Errorf("%+v: %v", test, lease.Err())
			}
		})
	}
}

// TestReleaseRepeats: Release repeats an attempt whose answer was lost, or that
// a lock prevented, until there is an answer or OpTimeout has passed. The
// error is that of the first attempt whose answer was lost.
func TestReleaseRepeats(t *testing.T) {
	const timeout = 2 * time.Second
	for _, test := range []repeated{
		{answers: []string{"freed"}, asks: 1},
		{answers: []string{"nothing"}, want: ErrLeaseLost, cause: errGone, asks: 1},
		{answers: []string{"down"}, want: guard.ErrUnavailable, cause: errFirst, asks: 1},
		{answers: []string{"lost", "freed"}, asks: 2},
		{answers: []string{"lost", "nothing"}, asks: 2},
		{answers: []string{"lost", "down", "lost", "freed"}, asks: 4},
		{answers: []string{"busy", "busy", "freed"}, asks: 3},
		{answers: []string{"busy", "nothing"}, want: ErrLeaseLost, asks: 2},
		{answers: []string{"busy"}, want: guard.ErrUnavailable, cause: driver.ErrBusy, took: timeout},
		{answers: []string{"lost"}, want: guard.ErrOutcomeUnknown, cause: errFirst, took: timeout},
		{answers: []string{"lost", "down"}, want: guard.ErrOutcomeUnknown, cause: errFirst, took: timeout},
	} {
		synctest.Test(t, func(t *testing.T) {
			i := &answering{}
			i.release = func(_ context.Context, claim guard.Claim) (bool, error) {
				n := len(i.released) - 1
				says := said(test.answers, n)
				return says == "freed", answer("release", claim, says, n)
			}
			var rec leasetest.Recorder
			client := i.client(t, &Options{OpTimeout: timeout, Observer: &rec})
			lease := mustTry(t, client, "r", time.Minute)
			time.Sleep(time.Second)
			began := time.Now()
			err := lease.Release(t.Context())
			test.check(t, err, len(i.released), time.Since(began))
			if lease.Err() != ErrReleased {
				t.Errorf("%+v: %v", test, lease.Err())
			}
			for _, claim := range i.released {
				if claim != lease.Claim() {
					t.Errorf("%+v: released %+v", test, claim)
				}
			}
			want := guard.Event{Op: guard.OpRelease, Surface: guard.SurfaceLock, Claim: lease.Claim(), Reason: guard.ReasonOf(err), Duration: time.Second + time.Since(began), Err: err}
			if test.want == ErrLeaseLost {
				want.Op = guard.OpLost
			}
			synctest.Wait()
			if events, _ := rec.Take(t); len(events) != 2 || events[1] != want {
				t.Errorf("%+v: observed %+v, want %+v", test, events, want)
			}
			unanswered := err != nil && test.want != ErrLeaseLost
			asked := len(i.released)
			_ = lease.Release(t.Context()) // repeated only if there was no answer
			if again := len(i.released) > asked; again != unanswered {
				t.Errorf("%+v: sent again %t", test, again)
			}
		})
	}
}

// TestRenewedByHand: a lease that is not kept alive lasts as long as its last
// renewal says. The client's look at the deadline before that ends nothing.
func TestRenewedByHand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := &answering{}
		lease := mustTry(t, i.client(t, nil), "r", time.Minute)
		time.Sleep(40 * time.Second)
		testkit.Must(t, lease.Renew(t.Context()))
		time.Sleep(50 * time.Second)
		if !lease.Valid() || len(i.renewed) != 1 {
			t.Errorf("%v after %d renewals", lease.Err(), len(i.renewed))
		}
		time.Sleep(10 * time.Second)
		var lost *LostError
		if lease.Valid() || !errors.As(lease.Err(), &lost) || lost.Cause != errUnkept {
			t.Errorf("at its deadline: %v", lease.Err())
		}
	})
}

// TestLossIsNotDelayed: if a renewal finds that the lease is over, the question
// why it is over takes half of the lease's remaining time at most.
func TestLossIsNotDelayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl = 2 * time.Second
		i := &answering{simulation: simulation{drifting(0)}, renew: func(_ context.Context, _ []driver.Renewal, results []driver.Renewed) {
			results[0].State = driver.Over
		}}
		client := simulate(t, explaining{i, func(ctx context.Context, _ guard.Claim) error {
			<-ctx.Done()
			return nil
		}}, nil)
		defer client.Close(t.Context())
		lease := mustTry(t, client, "r", ttl)
		testkit.Must(t, lease.KeepAlive(0))
		for renewed := 0; renewed == 0; {
			time.Sleep(time.Millisecond)
			renewed = i.renewals()
		}
		synctest.Wait()
		left, began := lease.Remaining(), time.Now()
		<-lease.Done()
		if took := time.Since(began); took > left/2 || took < left/2-2*time.Millisecond {
			t.Errorf("the loss was noticed after %v, with %v left", took, left)
		}
	})
}

// TestReleasedAfterAll: a release that failed is sent again by the next call. If
// the issuer does not have the lease by then, it was released, and nothing was
// lost.
func TestReleasedAfterAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i, sent := &answering{}, 0
		i.release = func(context.Context, guard.Claim) (bool, error) {
			if sent++; sent == 1 {
				return false, guard.Unavailable("release", guard.Claim{}, errSimulated)
			}
			return false, nil
		}
		var events []guard.Event
		client := i.client(t, &Options{Observer: guard.ObserverFunc(func(_ context.Context, e guard.Event) { events = append(events, e) })})
		lease := mustTry(t, client, "r", time.Minute)
		if err := lease.Release(t.Context()); !errors.Is(err, errSimulated) {
			t.Errorf("first: %v", err)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Errorf("second: %v", err)
		}
		synctest.Wait()
		if n := len(events); n != 3 || events[2].Op != guard.OpRelease || events[2].Err != nil {
			t.Errorf("%+v", events)
		}
	})
}

// TestRenewsToTheLast: a renewal that fails is repeated the sooner, the less is
// left of the lease.
func TestRenewsToTheLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lease *Lease
		least := time.Minute
		i := &answering{}
		i.renew = func(_ context.Context, renewals []driver.Renewal, results []driver.Renewed) {
			least = min(least, lease.Remaining())
			results[0].Err = guard.Unavailable("renew", renewals[0].Claim, errSimulated)
		}
		lease = mustTry(t, i.client(t, nil), "r", time.Minute)
		testkit.Must(t, lease.KeepAlive(0))
		<-lease.Done()
		synctest.Wait()
		if n := i.renewals(); least > 5*time.Millisecond || n > 500 {
			t.Errorf("%d renewals, the last with %v left", n, least)
		}
	})
}

// TestP6LostUnderAnOwnID: an attempt whose response was lost may be granted yet, so that
// no later refusal is the outcome of an acquire under a lease ID of the caller's: not
// before its timeout. A spent ID is one at once, since nothing is granted under it.
func TestP6LostUnderAnOwnID(t *testing.T) {
	held := &HeldError{Resource: "r", Owner: "other", Remaining: time.Minute}
	for what, c := range map[string]struct {
		after time.Duration // until the second response
		err   error
		want  guard.Reason
		is    error
	}{
		"held":             {0, held, guard.ReasonOutcomeUnknown, nil},
		"unavailable":      {0, guard.Unavailable("acquire", guard.Claim{}, errors.New("simulated")), guard.ReasonOutcomeUnknown, nil},
		"spent":            {0, ErrLeaseIDSpent, guard.ReasonOther, ErrLeaseIDSpent},
		"held, much later": {time.Minute, held, guard.ReasonOther, ErrHeld},
	} {
		testkit.Bubble(t, what, func(t *testing.T) {
			i, lost := &answering{}, false
			i.acquire = func(_ context.Context, r driver.Request) (driver.Grant, error) {
				if !lost {
					lost = true
					return driver.Grant{}, guard.OutcomeUnknown("acquire", r.Claim(), errors.New("simulated"))
				}
				time.Sleep(c.after)
				return driver.Grant{}, c.err
			}
			_, err := i.client(t, nil).TryAcquire(t.Context(), "r", &AcquireOptions{TTL: time.Hour, LeaseID: "mine"})
			if guard.ReasonOf(err) != c.want || c.is != nil && !errors.Is(err, c.is) || c.want == guard.ReasonOutcomeUnknown && errors.Is(err, ErrHeld) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestLateOnce: an attempt that was too late, as when the issuer had to prepare first, is
// made once more.
func TestLateOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for late := 1; late <= 2; late++ {
			i, calls := &answering{}, 0
			i.acquire = func(_ context.Context, r driver.Request) (driver.Grant, error) {
				if calls++; calls <= late {
					return driver.Grant{}, guard.Unavailable("acquire", r.Claim(), driver.ErrLate)
				}
				return driver.Grant{Token: 1, From: i.clock()}, nil
			}
			_, err := i.client(t, nil).TryAcquire(t.Context(), "r", &AcquireOptions{TTL: time.Hour})
			if (err == nil) != (late == 1) || err != nil && !errors.Is(err, driver.ErrLate) || calls != 2 {
				t.Errorf("late %d times: %v after %d calls", late, err, calls)
			}
		}
	})
}
