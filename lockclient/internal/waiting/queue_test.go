package waiting

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

// turns says which places may ask.
func turns(places ...*Place) (s string) {
	for _, p := range places {
		p.queue.all.mu.Lock()
		s += fmt.Sprint(p.may, " ")
		p.queue.all.mu.Unlock()
	}
	return s
}

// TestOrderAfterFailure: a failure gives the next two of those that ask by themselves a
// turn, so that nobody waits for the timeouts of all others. Those that are not the
// first give it back.
func TestOrderAfterFailure(t *testing.T) {
	t.Parallel()
	var all Queues
	join := func() *Place { p, _ := all.Join("r", Name{}); return p }
	a, b, c := join(), join(), join()
	if got := turns(a, b, c); got != "true false false " {
		t.Error(got)
	}
	b.Leave(false)
	a.Leave(false)
	if got := turns(c); got != "true " {
		t.Error(got)
	}
	a, b = join(), join()
	c.Leave(true)
	if got := turns(a, b); got != "true true " {
		t.Error(got)
	}
	if a.Yield() || !b.Yield() {
		t.Error("only the first keeps its turn")
	}
	if got := turns(a, b); got != "true false " {
		t.Error(got)
	}
	a.Leave(false)
	b.Leave(false)
	if len(all.by) != 0 {
		t.Error("a queue without waiters is left")
	}
}

// TestPlaceIsForgotten: the place of a waiter that does not come back is kept for
// some seconds, and then nothing is left of it.
func TestPlaceIsForgotten(t *testing.T) {
	t.Parallel()
	for away, order := range map[time.Duration]string{placeFor - time.Second: "[1 2]", placeFor + time.Second: "[2 1]"} {
		synctest.Test(t, func(t *testing.T) {
			var all Queues
			first, _ := all.Join("r", Name{"s", "1"})
			second, _ := all.Join("r", Name{"s", "2"})
			first.Away()
			time.Sleep(away)
			first, _ = all.Join("r", Name{"s", "1"})
			var got []string
			for _, one := range second.queue.places {
				got = append(got, one.name.LeaseID)
			}
			if fmt.Sprint(got) != order {
				t.Errorf("away for %v: the order is %v, want %s", away, got, order)
			}
			// Who had the first place meanwhile calls nobody, and gives up its turn.
			if called := second.Call(); called != (order == "[2 1]") || !called && turns(first, second) != "true false " {
				t.Errorf("away for %v: called %t, turns %s", away, called, turns(first, second))
			}
			first.Away()
			second.Away()
			time.Sleep(placeFor + CallFor + time.Second)
			synctest.Wait()
			if len(all.by) != 0 || len(all.left) != 0 {
				t.Errorf("%d queues and places of %d subjects are left", len(all.by), len(all.left))
			}
		})
	}
}

// TestPlacesAreBounded: a subject that joins for a moment under ever new names
// leaves no more than placesMost places, and takes none from another subject.
func TestPlacesAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var all Queues
		for n := range 3 * placesMost {
			p, _ := all.Join(fmt.Sprint("r", n), Name{"churns", "1"})
			p.Away()
		}
		first, _ := all.Join("r", Name{"s", "1"})
		second, _ := all.Join("r", Name{"s", "2"})
		first.Away()
		first, _ = all.Join("r", Name{"s", "1"})
		if len(all.by) != placesMost+1 || all.left["churns"] != placesMost || first.Yield() || !second.Yield() {
			t.Errorf("%d queues, %d places, turns %s", len(all.by), all.left["churns"], turns(first, second))
		}
		first.Away()
		second.Away()
		time.Sleep(placeFor + time.Second)
		synctest.Wait()
		if len(all.by) != 0 || len(all.left) != 0 {
			t.Errorf("%d queues and places of %d subjects are left", len(all.by), len(all.left))
		}
	})
}

// TestCall: the first try belongs to the waiter that was called, until it has asked
// or its time has passed. Then the next has its turn.
func TestCall(t *testing.T) {
	t.Parallel()
	for name, asks := range map[string]bool{"it asks": true, "it does not": false} {
		testkit.Bubble(t, name, func(t *testing.T) {
			var all Queues
			first, _ := all.Join("r", Name{"s", "1"})
			second, _ := all.Join("r", Name{"s", "2"})
			if second.Call() || !first.Call() {
				t.Error("only the first is called")
			}
			if mine, others := all.Reserved("r", Name{"s", "1"}), all.Reserved("r", Name{"t", "1"}); mine != 0 || others <= 0 || others > CallFor {
				t.Errorf("reserved for %v of its own time and %v of the others'", mine, others)
			}
			first.Away() // its request for a call has ended, and it keeps its turn
			if got := turns(second); got != "false " {
				t.Error("the next has its turn while the first is called")
			}
			if asks {
				all.Asked("r", Name{"s", "2"})
				all.Asked("r", Name{"s", "1"})
			} else {
				time.Sleep(CallFor)
				synctest.Wait()
			}
			if got := turns(second); got != "true " || all.Reserved("r", Name{"t", "1"}) != 0 || all.Count("r") != 1 {
				t.Errorf("turns %s, %d in the queue", got, all.Count("r"))
			}
			second.Leave(false)
			time.Sleep(placeFor)
			synctest.Wait()
		})
	}
}

// TestManyThatDoNotAsk: of waiters that are called and do not ask, each has half of the
// time of the one before it, so that eight of them delay the ninth by some two seconds.
// After one that asks, the next has the whole time again.
func TestManyThatDoNotAsk(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var all Queues
		var places []*Place
		for n := range 11 {
			p, _ := all.Join("r", Name{"s", fmt.Sprint(n)})
			places = append(places, p)
		}
		misses := func(n int, patience time.Duration) {
			t.Helper()
			if !places[n].Call() {
				t.Fatalf("%d was not called", n)
			}
			for _, want := range []string{"false ", "true "} { // before and after
				if want == "false " {
					time.Sleep(patience - time.Millisecond)
				} else {
					time.Sleep(time.Millisecond)
				}
				synctest.Wait()
				if got := turns(places[n+1]); got != want {
					t.Errorf("behind %d, which has %v to ask: turn %s", n, patience, got)
				}
			}
		}
		began := time.Now()
		for n := range 4 {
			misses(n, CallFor>>(2*n))
		}
		for n := 4; n < 8; n++ {
			places[n].Call()
			time.Sleep(time.Millisecond * 4)
		}
		if took := time.Since(began); took > 3*CallFor/2 {
			t.Errorf("the ninth waits for %v", took)
		}
		places[8].Call()
		all.Asked("r", Name{"s", "8"})
		misses(9, CallFor)
		places[10].Leave(false)
		time.Sleep(placeFor)
	})
}

// TestFail: each failure gives two more a turn, and none to a waiter that is called
// to ask, nor to anybody while one is called.
func TestFail(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var all Queues
		join := func(name Name) *Place { p, _ := all.Join("r", name); return p }
		watcher, other := join(Name{"s", "1"}), join(Name{"s", "2"})
		places := []*Place{watcher, other}
		for range 6 {
			places = append(places, join(Name{}))
		}
		watcher.Fail()
		if got := turns(places...); got != "true false true true false false false false " {
			t.Error(got)
		}
		places[2].Leave(true)
		if got := turns(places[3:]...); got != "true true true false false " {
			t.Error(got)
		}
		if !watcher.Call() {
			t.Fatal("the first is not called")
		}
		places[3].Leave(true)
		if got := turns(places[4:]...); got != "true true false false " {
			t.Errorf("while one is called: %s", got)
		}
		for _, p := range append(places[4:], watcher, other) {
			p.Leave(false)
		}
		if all.Count("r") != 0 {
			t.Errorf("%d are left", all.Count("r"))
		}
	})
}

// TestBackWhileAnotherIsCalled: a waiter comes back to a place before that of one that
// was called. It has its turn after that one has asked, or has run out of time, and
// nobody stays in the queue who is not there any more.
func TestBackWhileAnotherIsCalled(t *testing.T) {
	t.Parallel()
	for name, asks := range map[string]bool{"it asks": true, "it has died": false} {
		testkit.Bubble(t, name, func(t *testing.T) {
			var all Queues
			back, _ := all.Join("r", Name{"s", "back"})
			called, _ := all.Join("r", Name{"s", "called"})
			last, _ := all.Join("r", Name{})
			back.Away()
			if !called.Call() {
				t.Fatal("the second is not called while the first is away")
			}
			called.Away()
			back, first := all.Join("r", Name{"s", "back"})
			if first || back.Call() {
				t.Error("two are called at once")
			}
			if asks {
				all.Asked("r", Name{"s", "called"})
			} else {
				time.Sleep(CallFor)
				synctest.Wait()
			}
			if got := turns(back, last); got != "true false " || !back.Call() {
				t.Errorf("turns %s", got)
			}
			all.Asked("r", Name{"s", "back"})
			if got := turns(last); got != "true " || all.Count("r") != 1 {
				t.Errorf("turn %s, %d in the queue", got, all.Count("r"))
			}
			last.Leave(false)
			time.Sleep(placeFor + CallFor)
			synctest.Wait()
			if len(all.by) != 0 {
				t.Errorf("%d queues are left", len(all.by))
			}
		})
	}
}

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
