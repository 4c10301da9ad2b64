package lockclient

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/pause"
)

// lookAgain is the time after which a waiter asks on its own, unless the issuer
// says otherwise.
const lookAgain = 2 * time.Second

// Acquire waits until the lease on resource is granted or ctx ends. It asks
// under one lease ID, and asks again when the issuer notifies it of a release
// and when the holder's lease runs out. The waiters of one client queue
// per resource and only the first asks. Among clients the issuer wakes the one
// that has waited longest, if it can; PostgreSQL does. Where releases are not
// notified, as behind a pooler in transaction mode, it polls, with jittered
// pauses that grow from a fifth of Options.PollInterval to the whole.
//
// The errors are those of [Client.TryAcquire], but a held lease is not an error
// until ctx ends or the client is closed: then the error wraps the cause of ctx, or
// [ErrClosed], and the last [*HeldError]. Acquire also goes on after a lock timeout on the server, and
// when other clients come first each time; every other failure ends the wait.
func (c *Client) Acquire(ctx context.Context, resource string, opts *AcquireOptions) (*Lease, error) {
	return c.acquire(ctx, resource, opts, true)
}

// waiter is one Acquire.
type waiter struct {
	c     *Client
	r     *request
	place *place
	pause time.Duration // the next one between two polls

	held    *HeldError // the last refusal
	last    error      // the last try's error
	remains time.Duration
	hurried int // how often it asked again at once
}

func (c *Client) wait(ctx context.Context, r *request) (lease *Lease, err error) {
	place, first := c.waiters.join(r.Resource)
	w := &waiter{c: c, r: r, place: place, pause: c.set.PollInterval / 5}
	defer func() { w.place.leave(err != nil && c.usable(ctx) == nil) }()
	if !first {
		// A caller with a lease ID of its own may have the lease already.
		if r.given {
			if lease, err = w.ask(ctx); lease != nil || err != nil {
				return lease, err
			}
		} else if held := w.place.noted(); held != nil {
			w.note(ctx, held)
		}
		select {
		case <-w.place.turn:
		case <-ctx.Done():
			return nil, w.ended(ctx)
		case <-c.open.Done():
			return nil, w.ended(ctx)
		}
	}
	for {
		if lease, err = w.ask(ctx); lease != nil || err != nil {
			return lease, err
		}
		if err = w.rest(ctx); err != nil {
			return nil, err
		}
	}
}

// ask tries once. It returns neither lease nor error if the wait goes on.
func (w *waiter) ask(ctx context.Context) (*Lease, error) {
	lease, err := w.c.try(ctx, w.r)
	var refusal *HeldError
	switch {
	case err == nil:
		return lease, nil
	case errors.As(err, &refusal):
		w.note(ctx, refusal)
		w.remains = refusal.Remaining
	case !errors.Is(err, driver.ErrBusy) && !errors.Is(err, errRaced) || w.c.usable(ctx) != nil:
		if w.held != nil {
			err = fmt.Errorf("%w; before that: %v", err, w.held) // it is no longer known to be held
		}
		return nil, err
	default:
		w.remains = -1
	}
	w.last = err
	return nil, nil
}

func (w *waiter) note(ctx context.Context, held *HeldError) {
	if w.held == nil {
		w.c.events.contended(ctx, w.r, held)
	}
	w.held = held
	w.place.note(held)
}

// rest returns when it is worth asking again; its error ends the wait.
func (w *waiter) rest(ctx context.Context) error {
	woken := make(chan struct{})
	var once sync.Once
	for {
		stepped := w.c.steps()
		look := cmp.Or(w.c.limits.Poll, lookAgain)
		watch := driver.Watch{Resource: w.r.Resource, LeaseID: w.r.LeaseID, Wait: look}
		if w.remains >= 0 {
			watch.Wait = min(look, w.remains)
		}
		watching, err := w.c.issuer.Watch(ctx, watch, func() { once.Do(func() { close(woken) }) })
		if err != nil {
			return w.nap(ctx) // the next try returns what is wrong
		}
		if watching.Held == nil {
			watching.Stop()
			if w.hurried++; w.hurried < maxRaces {
				return nil
			}
			return w.nap(ctx)
		}
		w.hurried = 0
		w.note(ctx, watching.Held)
		w.remains = watching.Held.Remaining
		// Jittered, so that several processes do not ask at once.
		timer := time.NewTimer(min(pause.Jitter(look, 5), max(0, w.remains)+pause.Jitter(5*time.Millisecond, 1)))
		again := false
		select {
		case <-woken:
		case <-timer.C: // look
			again = true
		case <-stepped:
		case <-ctx.Done():
			err = w.ended(ctx)
		case <-w.c.open.Done():
			err = w.ended(ctx)
		}
		timer.Stop()
		watching.Stop()
		if !again {
			return err
		}
	}
}

// nap is the pause between two polls.
func (w *waiter) nap(ctx context.Context) error {
	nap := pause.Jitter(max(w.pause, time.Millisecond), 2)
	w.pause = min(w.pause*3/2, w.c.set.PollInterval)
	if w.remains >= 0 && w.remains < nap {
		// Not before the lease is over, and not all waiters at once.
		nap = w.remains + pause.Jitter(5*time.Millisecond, 1)
	}
	if !w.c.pause(ctx, nap) {
		return w.ended(ctx)
	}
	return nil
}

// ended is the error of a wait that ended between two tries.
func (w *waiter) ended(ctx context.Context) error {
	last := w.last
	if held := w.place.noted(); held != nil {
		last = held
	}
	switch {
	case ctx.Err() == nil && last == nil:
		return guard.Setup("acquire", w.r.Claim(), ErrClosed)
	case ctx.Err() == nil && errors.Is(last, guard.ErrUnavailable): // which a closed client is not
		return fmt.Errorf("%w; before that: %v", guard.Setup("acquire", w.r.Claim(), ErrClosed), last)
	case ctx.Err() == nil:
		return fmt.Errorf("%w; before that: %w", guard.Setup("acquire", w.r.Claim(), ErrClosed), last)
	case last == nil: // in the queue behind others that have no response yet
		return guard.Unavailable("acquire", w.r.Claim(), context.Cause(ctx))
	}
	return fmt.Errorf("fencepost: waiting for %q: %w: %w", w.r.Resource, context.Cause(ctx), last)
}

// waiters are the waiting acquires of one client, by resource and in the order
// of their arrival. Only the first of each resource asks the server; the others
// wait for their turn. So a release wakes one waiter of a process and not all,
// and a process keeps one connection busy however many wait in it.
type waiters struct {
	mu sync.Mutex
	by map[string]*line
}

// line is the waiters for one resource.
type line struct {
	places []*place
	held   *HeldError // what the last of them to ask got
}

// place is one waiter's place in its line.
type place struct {
	all      *waiters
	resource string
	line     *line
	turn     chan struct{} // closed when it may ask
	hasTurn  bool
}

// join takes the last place, which has its turn at once if nobody is ahead of it.
func (w *waiters) join(resource string) (p *place, first bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.by[resource]
	if l == nil {
		l = &line{}
		if w.by == nil {
			w.by = map[string]*line{}
		}
		w.by[resource] = l
	}
	p = &place{all: w, resource: resource, line: l, turn: make(chan struct{})}
	l.places = append(l.places, p)
	l.pass(false)
	return p, p.hasTurn
}

// pass gives the turn to the first, or to everybody.
func (l *line) pass(everybody bool) {
	for i, p := range l.places {
		if !p.hasTurn && (i == 0 || everybody) {
			p.hasTurn = true
			close(p.turn)
		}
	}
}

// leave gives the place up, and the turn to the next. After a failure everybody
// gets a turn: otherwise each would first wait for the timeouts of those ahead.
func (p *place) leave(failure bool) {
	p.all.mu.Lock()
	defer p.all.mu.Unlock()
	i := slices.Index(p.line.places, p)
	p.line.places = slices.Delete(p.line.places, i, i+1)
	if len(p.line.places) == 0 {
		delete(p.all.by, p.resource)
		return
	}
	p.line.pass(failure)
}

// note records who has the lease, for those whose wait ends before their turn.
func (p *place) note(held *HeldError) {
	p.all.mu.Lock()
	defer p.all.mu.Unlock()
	p.line.held = held
}

// noted returns what was noted last; nil if nothing was.
func (p *place) noted() *HeldError {
	p.all.mu.Lock()
	defer p.all.mu.Unlock()
	return p.line.held
}
