package waiting

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/pause"
)

const (
	// Look is the time after which a waiter looks on its own, unless the issuer says
	// otherwise.
	Look = 2 * time.Second
	// MaxRaces bounds how often an acquire is repeated at once when the holder
	// changes between two statements.
	MaxRaces = 10
	// firstNap is the first pause where nothing can be watched.
	firstNap = 20 * time.Millisecond
	// spread is the time within which processes ask that all wait for the same lease to run
	// out: as long as a lease is late at most, and a statement or two for each of some
	// dozens of processes.
	spread = 50 * time.Millisecond
)

// Verdict is what became of one try.
type Verdict int

const (
	// Over: the wait is over, with or without the lease.
	Over Verdict = iota
	// Failed: the wait is over, and those behind need not wait for as long.
	Failed
	// Refused: somebody has the lease.
	Refused
	// Busy: nobody could say who has the lease.
	Busy
)

// Waiter is one acquire that waits.
type Waiter struct {
	Resource, LeaseID string
	// First says that it asks once before it queues: it may have the lease already.
	First bool
	// Poll is how long a watch is trusted; 0 means [Look].
	Poll time.Duration
	// Nap is the longest pause between two tries where nothing can be watched. The
	// pauses begin with 20 ms.
	Nap time.Duration
	// Ask tries once.
	Ask func(context.Context) (Verdict, *driver.HeldError)
	// Watch is the issuer's.
	Watch func(context.Context, driver.Watch, func()) (driver.Watching, error)
	// Heard gets who has the lease, each time that it is seen. It may be nil.
	Heard func(*driver.HeldError)
	// Closed ends the wait.
	Closed <-chan struct{}

	place   *Place
	pause   time.Duration // the next one between two polls
	remains time.Duration // of the lease; -1 if that is not known
	hurried int           // how often it asked again at once
}

// Wait asks in turn with the others of this process until Ask says that the wait is
// over; false if ctx or the process has ended it before. held is who has the lease as
// far as anybody in the queue knows.
func (all *Queues) Wait(ctx context.Context, w *Waiter) (over bool, held *driver.HeldError) {
	place, first := all.Join(w.Resource, Name{})
	w.place, w.pause = place, min(firstNap, w.Nap)
	failed := false
	defer func() { place.Leave(failed) }()
	for asks := w.First || first; ; asks = true {
		if !asks {
			if held := all.Noted(w.Resource); held != nil && w.Heard != nil {
				w.Heard(held)
			}
		} else {
			verdict, held := w.Ask(ctx)
			switch verdict {
			case Over, Failed:
				failed = verdict == Failed
				return true, nil
			case Refused:
				w.note(held)
			case Busy:
				w.remains = -1
			}
		}
		if !place.Yield() {
			if asks && !w.rest(ctx) {
				return false, all.Noted(w.Resource)
			}
			if !asks || !place.Yield() { // else somebody has come back to the first place
				continue
			}
		}
		select {
		case <-place.Turn():
		case <-ctx.Done():
			return false, all.Noted(w.Resource)
		case <-w.Closed:
			return false, all.Noted(w.Resource)
		}
	}
}

func (w *Waiter) note(held *driver.HeldError) {
	w.remains = held.Remaining
	w.place.Note(held)
	if w.Heard != nil {
		w.Heard(held)
	}
}

// rest returns when it is worth asking again; false if the wait has ended.
func (w *Waiter) rest(ctx context.Context) bool {
	woken := make(chan struct{})
	var once sync.Once
	for {
		look := cmp.Or(w.Poll, Look)
		watch := driver.Watch{Resource: w.Resource, LeaseID: w.LeaseID, Wait: look}
		if w.remains >= 0 {
			watch.Wait = min(look, w.remains)
		}
		watching, err := w.Watch(ctx, watch, func() { once.Do(func() { close(woken) }) })
		if err != nil {
			return w.nap(ctx) // the next try returns what is wrong
		}
		if watching.Held == nil {
			watching.Stop()
			if w.hurried++; w.hurried < MaxRaces {
				return true
			}
			return w.nap(ctx)
		}
		w.hurried = 0
		w.note(watching.Held)
		again, ended := false, false
		timer := time.NewTimer(Until(watching.Held, w.Poll))
		select {
		case <-woken:
		case <-timer.C: // look
			again = true
		case <-ctx.Done():
			ended = true
		case <-w.Closed:
			ended = true
		}
		timer.Stop()
		watching.Stop()
		if !again || w.place.Yield() { // else somebody has come back to the first place
			return !ended
		}
	}
}

// Until is how long to wait for a watch to wake before the next look; jittered, so
// that several processes do not ask at once. held may be nil.
func Until(held *driver.HeldError, poll time.Duration) time.Duration {
	d := pause.Jitter(cmp.Or(poll, Look), 5)
	if held != nil {
		d = min(d, max(0, held.Remaining)+pause.Jitter(spread, 1))
	}
	return d
}

// nap is the pause between two polls; false if the wait has ended.
func (w *Waiter) nap(ctx context.Context) bool {
	nap := pause.Jitter(max(w.pause, time.Millisecond), 2)
	w.pause = min(w.pause*3/2, w.Nap)
	if w.remains >= 0 && w.remains < nap {
		// Not before the lease is over, and not all waiters at once.
		nap = w.remains + pause.Jitter(spread, 1)
	}
	return pause.For(ctx, nap, w.Closed)
}
