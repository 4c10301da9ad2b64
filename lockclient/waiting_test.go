package lockclient

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/leasetest"
	"github.com/fencepost-go/fencepost/lockclient/internal/waiting"
)

// heldBy7 is a refusal that lasts.
func heldBy7(r driver.Request) error {
	return &HeldError{Resource: r.Resource, Token: 7, Remaining: time.Hour}
}

// refuses makes an issuer refuse every acquire, and every watch rest.
func refuses(i *answering) *answering {
	i.acquire = func(_ context.Context, r driver.Request) (driver.Grant, error) { return driver.Grant{}, heldBy7(r) }
	i.watch = func(_ context.Context, w driver.Watch, _ func()) (driver.Watching, error) {
		return driver.Watching{Held: &HeldError{Resource: w.Resource, Token: 7, Remaining: time.Hour}}, nil
	}
	return i
}

// acquires starts an Acquire of "r" and returns its outcome, once it rests.
func acquires(ctx context.Context, c *Client, id string) <-chan error {
	over := make(chan error, 1)
	go func() {
		_, err := c.Acquire(ctx, "r", &AcquireOptions{TTL: time.Minute, LeaseID: id})
		over <- err
	}()
	synctest.Wait()
	return over
}

// askedBy returns the lease IDs of the acquires, in order.
func (i *answering) askedBy() (ids []string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, r := range i.acquired {
		ids = append(ids, r.LeaseID)
	}
	return ids
}

// TestOwnLeaseIDInLine: a caller that has chosen its lease ID asks once before
// it stands in line, since it may have the lease already. What it is told is
// the outcome, unless somebody else has the lease.
func TestOwnLeaseIDInLine(t *testing.T) {
	for name, test := range map[string]struct {
		answer func(*answering, driver.Request) (driver.Grant, error)
		want   error
		waits  bool
		told   int // how many were told who has the lease
	}{
		"has it": {answer: func(i *answering, _ driver.Request) (driver.Grant, error) {
			return driver.Grant{Token: 7, From: i.clock()}, nil
		}, told: 2},
		"spent": {answer: func(*answering, driver.Request) (driver.Grant, error) {
			return driver.Grant{}, driver.ErrLeaseIDSpent
		}, want: ErrLeaseIDSpent, told: 2},
		"held": {answer: func(_ *answering, r driver.Request) (driver.Grant, error) {
			return driver.Grant{}, heldBy7(r)
		}, want: context.Canceled, waits: true, told: 3},
	} {
		testkit.Bubble(t, name, func(t *testing.T) {
			i := refuses(&answering{})
			refuse := i.acquire
			i.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
				if r.LeaseID == "mine" {
					return test.answer(i, r)
				}
				return refuse(ctx, r)
			}
			var seen leasetest.Tally
			client := i.client(t, &Options{Observer: &seen})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			acquires(ctx, client, "first")
			over := acquires(ctx, client, "mine")
			if waits := len(over) == 0; waits != test.waits {
				t.Fatalf("it waits: %t", waits)
			}
			other := acquires(ctx, client, "")
			if want := []string{"first", "mine"}; len(other) > 0 || !slices.Equal(i.askedBy(), want) {
				t.Errorf("%q have asked, want %q: a caller without a lease ID waits for its turn", i.askedBy(), want)
			}
			if told := seen.Failed(guard.OpContend); told != test.told {
				t.Errorf("%d were told who has the lease", told)
			}
			cancel()
			if err := <-over; !errors.Is(err, test.want) {
				t.Errorf("got %v", err)
			}
			<-other
		})
	}
}

// TestTurns: a waiter that is granted, or whose context ends, leaves its turn to
// the next one. After a failure everybody asks.
func TestTurns(t *testing.T) {
	for name, test := range map[string]struct {
		end  func(i *answering, cancel func())
		asks []string // after "a"
	}{
		"granted": {func(i *answering, _ func()) {
			i.acquire = func(_ context.Context, r driver.Request) (driver.Grant, error) {
				if r.LeaseID == i.askedBy()[0] {
					return driver.Grant{Token: 8, From: i.clock()}, nil
				}
				return driver.Grant{}, heldBy7(r)
			}
		}, []string{"1", "1", "2"}},
		"cancelled": {func(_ *answering, cancel func()) { cancel() }, []string{"1", "2"}},
		"failed": {func(i *answering, _ func()) {
			refuse := i.acquire
			i.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
				if r.LeaseID == i.askedBy()[0] {
					return driver.Grant{}, guard.Setup("acquire", r.Claim(), errSimulated)
				}
				return refuse(ctx, r)
			}
		}, []string{"1", "1", "2", "3"}},
	} {
		testkit.Bubble(t, name, func(t *testing.T) {
			i := refuses(&answering{})
			client := i.client(t, nil)
			first, cancel := context.WithCancel(t.Context())
			defer cancel()
			all, end := context.WithCancel(t.Context())
			defer end()
			over := acquires(first, client, "")
			for range 2 {
				over := acquires(all, client, "")
				defer func() { end(); <-over }()
			}
			wake := i.wake // before another watch replaces it
			test.end(i, cancel)
			wake() // the first one asks again
			synctest.Wait()
			if len(over) != 1 {
				t.Error("the first one waits")
			}
			names, asked := map[string]string{}, []string(nil)
			for _, id := range i.askedBy() {
				if names[id] == "" {
					names[id] = string(rune('1' + len(names)))
				}
				asked = append(asked, names[id])
			}
			if !slices.Equal(asked, test.asks) {
				t.Errorf("%q have asked, want %q", asked, test.asks)
			}
		})
	}
}

// TestEndsInLine: the error of a wait that ends in line says why it ended, and
// who has the lease if somebody in the line was told.
func TestEndsInLine(t *testing.T) {
	for name, test := range map[string]struct {
		told, closes bool
	}{
		"cancelled":               {false, false},
		"closed":                  {false, true},
		"cancelled, after a word": {true, false},
		"closed, after a word":    {true, true},
	} {
		testkit.Bubble(t, name, func(t *testing.T) {
			answer := make(chan struct{})
			i := refuses(&answering{})
			refuse := i.acquire
			i.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
				<-answer
				return refuse(ctx, r)
			}
			client := i.client(t, nil)
			acquires(t.Context(), client, "")
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			over := acquires(ctx, client, "")
			if test.told {
				close(answer)
			}
			synctest.Wait()
			if test.closes {
				go client.Close(context.Background())
			} else {
				cancel(errSimulated)
			}
			synctest.Wait()
			if len(over) != 1 {
				t.Error("it waits for its turn")
			}
			err := <-over
			var held *HeldError
			if told := errors.As(err, &held) && held.Token == 7; told != test.told {
				t.Errorf("the holder is named %t: %v", told, err)
			}
			switch {
			case test.closes:
				failure(t, err, guard.ErrSetup, "r", ErrClosed)
			case test.told:
				if !errors.Is(err, errSimulated) || errors.Is(err, guard.ErrUnavailable) {
					t.Errorf("got %v", err)
				}
			default:
				failure(t, err, guard.ErrUnavailable, "r", errSimulated)
			}
			if strings.Contains(err.Error(), "before that") != (test.closes && test.told) {
				t.Errorf("got %v", err)
			}
			if acquired, _, _ := i.counts(); acquired != 1 {
				t.Errorf("asked %d times", acquired)
			}
			if !test.told {
				close(answer)
			}
		})
	}
}

// TestAsksAgainAtOnce: a waiter that is refused and then told that the lease is
// free asks again at once, nine times. After that it pauses each time, until it
// has been told a holder.
func TestAsksAgainAtOnce(t *testing.T) {
	for name, test := range map[string]struct {
		watches string // F: free, H: held by another and woken at once
		pauses  int
	}{
		"nine times":          {strings.Repeat("F", 9), 0},
		"ten times":           {strings.Repeat("F", 10), 1},
		"thirteen times":      {strings.Repeat("F", 13), 4},
		"a holder in between": {strings.Repeat("F", 9) + "H" + strings.Repeat("F", 9), 0},
	} {
		testkit.Bubble(t, name, func(t *testing.T) {
			i := refuses(&answering{})
			refuse := i.acquire
			left := test.watches
			i.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
				if left != "" {
					return refuse(ctx, r)
				}
				return driver.Grant{Token: 8, From: i.clock()}, nil
			}
			i.watch = func(_ context.Context, w driver.Watch, wake func()) (driver.Watching, error) {
				free := left[0] == 'F'
				if left = left[1:]; free {
					return driver.Watching{}, nil
				}
				wake()
				return driver.Watching{Held: &HeldError{Resource: "r", Token: 7, Remaining: time.Hour}}, nil
			}
			client := i.client(t, nil)
			began := time.Now()
			if _, err := client.Acquire(t.Context(), "r", minute); err != nil {
				t.Fatal(err)
			}
			// The first pauses are 10 to 68 ms long.
			if took := time.Since(began); took < time.Duration(test.pauses)*10*time.Millisecond || took > time.Duration(test.pauses)*68*time.Millisecond {
				t.Errorf("took %v", took)
			}
			if i.stopped != len(test.watches) {
				t.Errorf("%d of %d watches were stopped", i.stopped, len(test.watches))
			}
		})
	}
}

// TestWaiterLooksAgain: without a wake-up a waiter looks again after a while and
// asks only if the lease is free.
func TestWaiterLooksAgain(t *testing.T) {
	for name, test := range map[string]struct {
		poll        time.Duration
		remaining   time.Duration // of the lease, less 100 ms for the watches
		least, most time.Duration
		wait        time.Duration // that the first watch is granted
	}{
		"two seconds": {0, time.Hour, 2 * waiting.Look * 4 / 5, 2 * waiting.Look, waiting.Look},
		"poll":        {10 * time.Second, time.Hour, 16 * time.Second, 20 * time.Second, 10 * time.Second},
		"runs out":    {0, 400 * time.Millisecond, 600 * time.Millisecond, 700 * time.Millisecond, 400 * time.Millisecond},
	} {
		testkit.Bubble(t, name, func(t *testing.T) {
			i := &answering{limits: driver.Limits{Poll: test.poll}}
			i.acquire = func(_ context.Context, r driver.Request) (driver.Grant, error) {
				if len(i.askedBy()) == 1 {
					return driver.Grant{}, &HeldError{Resource: "r", Token: 7, Remaining: test.remaining}
				}
				return driver.Grant{Token: 8, From: i.clock()}, nil
			}
			i.watch = func(_ context.Context, w driver.Watch, _ func()) (driver.Watching, error) {
				if _, watches, _ := i.counts(); watches == 3 {
					return driver.Watching{}, nil
				}
				return driver.Watching{Held: &HeldError{Resource: "r", Token: 7, Remaining: test.remaining - 100*time.Millisecond}}, nil
			}
			var seen leasetest.Tally
			client := i.client(t, &Options{Observer: &seen})
			began := time.Now()
			if _, err := client.Acquire(t.Context(), "r", minute); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); took < test.least || took > test.most {
				t.Errorf("granted after %v", took)
			}
			if len(i.acquired) != 2 || len(i.watched) != 3 || i.stopped != 3 {
				t.Errorf("%d acquires, %d watches, %d of them stopped", len(i.acquired), len(i.watched), i.stopped)
			}
			if want := (driver.Watch{Resource: "r", LeaseID: i.acquired[0].LeaseID, Wait: test.wait}); i.watched[0] != want {
				t.Errorf("watched %+v", i.watched[0])
			}
			if n := seen.Failed(guard.OpContend); n != 1 {
				t.Errorf("contended %d times", n)
			}
		})
	}
}

// TestEndsAfterTrouble: when the context ends a wait whose last try failed in
// passing, the error names the last known holder; if none is known, the failure.
func TestEndsAfterTrouble(t *testing.T) {
	for name, known := range map[string]bool{"a holder is known": true, "none is known": false} {
		testkit.Bubble(t, name, func(t *testing.T) {
			i := &answering{}
			i.acquire = func(_ context.Context, r driver.Request) (driver.Grant, error) {
				if len(i.askedBy()) == 1 && known {
					return driver.Grant{}, heldBy7(r)
				}
				return driver.Grant{}, guard.Unavailable("acquire", r.Claim(), driver.ErrBusy)
			}
			client := i.client(t, nil)
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errSimulated)
			defer cancel()
			_, err := client.Acquire(ctx, "r", minute)
			if !errors.Is(err, errSimulated) || errors.Is(err, ErrHeld) != known || errors.Is(err, driver.ErrBusy) == known {
				t.Errorf("got %v", err)
			}
			if acquires, _, _ := i.counts(); acquires < 3 {
				t.Errorf("it asked %d times", acquires)
			}
		})
	}
}

// TestEndsInFlight: a wait whose context ends says what is known of the holder, whether
// it rested or an attempt was in flight.
func TestEndsInFlight(t *testing.T) {
	for name, test := range map[string]struct {
		known bool
		lost  bool // the attempt in flight may be granted
		want  error
	}{
		"a holder is known":                     {true, false, ErrHeld},
		"none is known":                         {false, false, guard.ErrUnavailable},
		"a holder is known, the outcome is not": {true, true, guard.ErrOutcomeUnknown},
	} {
		testkit.Bubble(t, name, func(t *testing.T) {
			i := &answering{}
			i.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
				if len(i.askedBy()) == 1 && test.known {
					return driver.Grant{}, &HeldError{Resource: r.Resource, Token: 7, Remaining: time.Millisecond}
				}
				<-ctx.Done()
				if test.lost {
					return driver.Grant{}, guard.OutcomeUnknown("acquire", r.Claim(), context.Cause(ctx))
				}
				return driver.Grant{}, guard.Unavailable("acquire", r.Claim(), context.Cause(ctx))
			}
			ctx, cancel := context.WithCancelCause(t.Context())
			over := acquires(ctx, i.client(t, nil), "")
			time.Sleep(time.Second)
			cancel(errSimulated)
			err := <-over
			for _, reason := range []error{ErrHeld, guard.ErrUnavailable, guard.ErrOutcomeUnknown} {
				if errors.Is(err, reason) != (reason == test.want) {
					t.Errorf("want %v, got %v", test.want, err)
				}
			}
			if !errors.Is(err, errSimulated) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestFailsAfterRefusal: an Acquire that fails for another reason than the holder
// names the holder, but does not match ErrHeld: somebody may count on that.
func TestFailsAfterRefusal(t *testing.T) {
	for name, last := range map[string]error{
		"unavailable":     guard.Unavailable("acquire", guard.Claim{Resource: "r"}, errSimulated),
		"outcome unknown": guard.OutcomeUnknown("acquire", guard.Claim{Resource: "r"}, errSimulated),
		"spent":           ErrLeaseIDSpent,
	} {
		testkit.Bubble(t, name, func(t *testing.T) {
			i := &answering{}
			i.acquire = func(context.Context, driver.Request) (driver.Grant, error) {
				if len(i.acquired) == 1 {
					return driver.Grant{}, &HeldError{Resource: "r", Owner: "another", LeaseID: "x", Token: 1, Remaining: time.Minute}
				}
				return driver.Grant{}, last
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err := i.client(t, nil).Acquire(ctx, "r", &AcquireOptions{TTL: time.Minute, LeaseID: "mine"})
			if !errors.Is(err, last) && !errors.Is(err, errSimulated) || errors.Is(err, ErrHeld) || !strings.Contains(err.Error(), "another") {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestHolderThatRanOut: a wait that ends in the queue, after the lease that it heard of
// has run out and before anybody could say more, still names that holder.
func TestHolderThatRanOut(t *testing.T) {
	testkit.Eventually(t, "a waiter that joins within a second", func() bool { return endsAfterItsHolder(t) })
}

func endsAfterItsHolder(t *testing.T) (heard bool) {
	t.Helper()
	var seen leasetest.Tally
	i, hangs := &answering{}, make(chan struct{})
	i.acquire = func(_ context.Context, r driver.Request) (driver.Grant, error) {
		if len(i.askedBy()) > 1 {
			<-hangs
		}
		return driver.Grant{}, &HeldError{Resource: r.Resource, Token: 7, Remaining: time.Second}
	}
	i.watch = func(context.Context, driver.Watch, func()) (driver.Watching, error) {
		return driver.Watching{}, nil // free: it asks again, and gets no response
	}
	client := i.client(t, &Options{Observer: &seen})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 2)
	for n := range 2 {
		go func() {
			_, err := client.Acquire(ctx, "r", minute)
			ended <- err
		}()
		testkit.Eventually(t, "the first is refused", func() bool { return client.waiters.Count("r") == n+1 && seen.Failed(guard.OpContend) > 0 })
	}
	testkit.Eventually(t, "the lease is over", func() bool { return client.waiters.Noted("r") == nil })
	if heard = seen.Failed(guard.OpContend) == 2; heard {
		cancel()
		var held *HeldError
		if err := <-ended; !errors.As(err, &held) || held.Token != 7 || !errors.Is(err, context.Canceled) || errors.Is(err, guard.ErrUnavailable) {
			t.Errorf("got %v", err)
		}
	}
	close(hangs)
	return heard
}

// TestWatchHangs: an issuer that does not respond to a watch holds up a waiter for
// OpTimeout, not for as long as it would wait.
func TestWatchHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = 3 * time.Second
		i := &answering{watch: func(ctx context.Context, _ driver.Watch, _ func()) (driver.Watching, error) {
			<-ctx.Done()
			return driver.Watching{}, context.Cause(ctx)
		}}
		i.acquire = func(_ context.Context, r driver.Request) (driver.Grant, error) {
			if len(i.acquired) == 1 {
				return driver.Grant{}, heldBy7(r)
			}
			return driver.Grant{Token: 8, From: i.clock()}, nil
		}
		began := time.Now()
		if _, err := i.client(t, &Options{OpTimeout: timeout}).Acquire(t.Context(), "r", minute); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took < timeout || took > timeout+time.Second {
			t.Errorf("it took %v", took)
		}
	})
}
