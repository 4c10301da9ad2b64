package waiting

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

var errBlind = errors.New("nothing can be watched")

func blind(context.Context, driver.Watch, func()) (driver.Watching, error) {
	return driver.Watching{}, errBlind
}

// TestNaps: where nothing can be watched the pauses grow from 20 ms to Nap,
// less up to half. None lasts longer than the lease is known to.
func TestNaps(t *testing.T) {
	t.Parallel()
	const nap, few = 100 * time.Millisecond, spread
	type try struct {
		verdict     Verdict
		remaining   time.Duration
		least, most time.Duration // of the pause after it
	}
	for name, tries := range map[string][]try{
		"grows": {
			{Refused, time.Hour, 10 * time.Millisecond, 20 * time.Millisecond},
			{Refused, time.Hour, 15 * time.Millisecond, 30 * time.Millisecond},
			{Refused, time.Hour, 22 * time.Millisecond, 45 * time.Millisecond},
			{Refused, time.Hour, 33 * time.Millisecond, 68 * time.Millisecond},
			{Refused, time.Hour, nap / 2, nap},
			{Refused, time.Hour, nap / 2, nap},
		},
		"the lease runs out": {
			{Refused, 7 * time.Millisecond, 7 * time.Millisecond, 7*time.Millisecond + few},
			{Refused, 0, 0, few},
		},
		"busy": {
			{Refused, time.Millisecond, time.Millisecond, time.Millisecond + few},
			{Busy, 0, 15 * time.Millisecond, 30 * time.Millisecond},
		},
	} {
		testkit.Bubble(t, name, func(t *testing.T) {
			var all Queues
			var asked []time.Time
			over, held := all.Wait(t.Context(), &Waiter{Resource: "r", Nap: nap, Watch: blind, Ask: func(context.Context) (Verdict, *driver.HeldError) {
				n := len(asked)
				asked = append(asked, time.Now())
				switch {
				case n == len(tries):
					return Over, nil
				case tries[n].verdict == Refused:
					return Refused, &driver.HeldError{Resource: "r", Remaining: tries[n].remaining}
				}
				return tries[n].verdict, nil
			}})
			if !over || held != nil || len(asked) != len(tries)+1 {
				t.Fatalf("over: %t, held %v, asked %d times", over, held, len(asked))
			}
			for n, c := range tries {
				if d := asked[n+1].Sub(asked[n]); d < c.least || d > c.most {
					t.Errorf("the pause after try %d is %v, want %v to %v", n+1, d, c.least, c.most)
				}
			}
		})
	}
}

// TestSomebodyComesBack: a waiter that has its turn while the first is away gives it
// up when the first has come back, and does not ask before it.
func TestSomebodyComesBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var all Queues
		asked, wake := 0, func() {}
		held := &driver.HeldError{Resource: "r", Remaining: time.Hour}
		first, _ := all.Join("r", Name{"s", "1"})
		done := make(chan bool)
		go func() {
			over, _ := all.Wait(t.Context(), &Waiter{Resource: "r", Nap: time.Second,
				Ask: func(context.Context) (Verdict, *driver.HeldError) {
					if asked++; asked == 2 {
						return Over, nil
					}
					return Refused, held
				},
				Watch: func(_ context.Context, _ driver.Watch, w func()) (driver.Watching, error) {
					wake = w
					return driver.Watching{Held: held, Stop: func() {}}, nil
				}})
			done <- over
		}()
		synctest.Wait()
		if asked != 0 {
			t.Error("it asks before its turn")
		}
		first.Away()
		synctest.Wait()
		if asked != 1 {
			t.Errorf("it asked %d times while the first was away", asked)
		}
		first, _ = all.Join("r", Name{"s", "1"})
		wake()
		synctest.Wait()
		if asked != 1 {
			t.Error("it was faster than the one that came back")
		}
		first.Leave(false)
		if !<-done || asked != 2 {
			t.Errorf("it asked %d times", asked)
		}
	})
}

// TestNoted: what is noted about a holder ages, and is forgotten when its lease is over.
func TestNoted(t *testing.T) {
	t.Parallel()
	var all Queues
	p, _ := all.Join("r", Name{})
	if all.Noted("r") != nil || all.Noted("another") != nil {
		t.Error("nothing was noted")
	}
	p.Note(&driver.HeldError{Resource: "r", Token: 7, Remaining: time.Hour})
	time.Sleep(time.Millisecond)
	if held := all.Noted("r"); held == nil || held.Token != 7 || held.Remaining > time.Hour-time.Millisecond {
		t.Errorf("noted %v", held)
	}
	p.Note(&driver.HeldError{Resource: "r", Token: 7, Remaining: time.Nanosecond})
	time.Sleep(time.Millisecond)
	if held := all.Noted("r"); held != nil {
		t.Errorf("noted %v of a lease that is over", held)
	}
	p.Leave(false)
}
