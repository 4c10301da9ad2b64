package lockhttp

import (
	"slices"
	"sync"
	"time"

	"github.com/fencepost-go/fencepost/lockclient/driver"
)

// turnFor is how long the first try is reserved for a client that was notified to
// ask.
const turnFor = time.Second

// placeFor is how long the place of a client that has left is kept, as
// [driver.Watching] promises: clients watch again from time to time.
const placeFor = 5 * time.Second

// placesMost bounds how many places are kept for a subject.
const placesMost = 1000

// turns are the clients that wait by GET /v1/watch, by resource. The first for
// a resource watches at the issuer and is notified to ask; the others wait for
// their turn, so that a release wakes one of them and costs the issuer one
// attempt.
type turns struct {
	mu   sync.Mutex
	by   map[string]*queue
	left map[string]int // how many places are kept, by subject
}

// queue is the clients that wait for one resource.
type queue struct {
	all      *turns
	resource string
	tickets  []*ticket // in the order of their numbers
	next     int       // the next new number
	left     map[waiter]departed
	held     *driver.HeldError // what the last client to be first got to know
	seen     time.Duration     // when, by driver.Now
	called   *ticket           // the one that was notified to ask and has not yet
	timer    *time.Timer       // ends called
	until    time.Duration
}

// waiter names a client that waits.
type waiter struct{ subject, leaseID string }

// departed is the place of a client that has left and may come back.
type departed struct {
	number int
	until  time.Duration
}

// ticket is one client's place.
type ticket struct {
	queue *queue
	waiter
	number int
	turn   chan struct{} // closed when it is the first
	passed chan struct{} // closed when it no longer is, since another came back
	first  bool
}

// join takes the last place, or the one that the client had until a moment ago: it
// watches again, or was notified to ask and somebody else was faster.
func (all *turns) join(resource, subject, leaseID string) *ticket {
	all.mu.Lock()
	defer all.mu.Unlock()
	q := all.by[resource]
	if q == nil {
		q = &queue{all: all, resource: resource, left: map[waiter]departed{}}
		if all.by == nil {
			all.by, all.left = map[string]*queue{}, map[string]int{}
		}
		all.by[resource] = q
	}
	t := &ticket{queue: q, waiter: waiter{subject, leaseID}}
	t.forgo()
	if q.called.is(subject, leaseID) {
		q.end()
	}
	// It may come back before the server notices that it has left.
	if n := slices.IndexFunc(q.tickets, func(old *ticket) bool { return old.waiter == t.waiter }); n >= 0 {
		q.tickets[n].leaving(n)
	}
	if old, ok := q.left[t.waiter]; ok {
		t.number = old.number
		q.forget(t.waiter)
	} else {
		t.number = q.next
		q.next++
	}
	n, _ := slices.BinarySearchFunc(q.tickets, t.number, func(other *ticket, number int) int { return other.number - number })
	q.tickets = slices.Insert(q.tickets, n, t)
	if n == 0 && len(q.tickets) > 1 && q.tickets[1].first {
		q.tickets[1].forgo()
	}
	q.pass()
	return t
}

// forgo makes the ticket wait for its turn, again if it had it.
func (t *ticket) forgo() {
	if t.first {
		close(t.passed)
	}
	t.first, t.turn, t.passed = false, make(chan struct{}), make(chan struct{})
}

// leaving takes the ticket out of the queue, in which it is the nth, and keeps its
// place for a while.
func (t *ticket) leaving(n int) {
	q := t.queue
	q.tickets = slices.Delete(q.tickets, n, n+1)
	t.forgo()
	if q.all.left[t.subject] >= placesMost {
		return
	}
	until := driver.Now() + placeFor
	q.left[t.waiter] = departed{t.number, until}
	q.all.left[t.subject]++
	time.AfterFunc(placeFor, func() {
		q.all.mu.Lock()
		defer q.all.mu.Unlock()
		if q.left[t.waiter].until == until {
			q.forget(t.waiter)
			q.pass() // the queue may be of no use any more
		}
	})
}

// forget drops the place of a client that has left.
func (q *queue) forget(w waiter) {
	delete(q.left, w)
	if q.all.left[w.subject]--; q.all.left[w.subject] == 0 {
		delete(q.all.left, w.subject)
	}
}

// signals returns what is closed when the client's turn comes and when it passes.
func (t *ticket) signals() (turn, passed <-chan struct{}) {
	t.queue.all.mu.Lock()
	defer t.queue.all.mu.Unlock()
	return t.turn, t.passed
}

func (t *ticket) is(subject, leaseID string) bool {
	return t != nil && t.subject == subject && t.leaseID == leaseID
}

// leave ends the wait. The place is kept for a while.
func (t *ticket) leave() {
	q := t.queue
	q.all.mu.Lock()
	defer q.all.mu.Unlock()
	if n := slices.Index(q.tickets, t); n >= 0 {
		t.leaving(n)
	}
	q.pass()
}

// note records who has the lease, for those behind.
func (t *ticket) note(held *driver.HeldError) {
	t.queue.all.mu.Lock()
	defer t.queue.all.mu.Unlock()
	t.queue.held, t.queue.seen = held, driver.Now()
}

// known returns who has the lease as far as the first knows; for a lease that
// may be free, that others have waited longer for it.
func (t *ticket) known() *driver.HeldError {
	q := t.queue
	q.all.mu.Lock()
	defer q.all.mu.Unlock()
	if q.held != nil {
		if held := *q.held; held.Remaining > driver.Now()-q.seen {
			held.Remaining -= driver.Now() - q.seen
			return &held
		}
	}
	return kept(q.resource, turnFor)
}

// kept is the refusal of a lease that is kept for a longer-waiting client.
func kept(resource string, remaining time.Duration) *driver.HeldError {
	return &driver.HeldError{Resource: resource, ExpiresAt: time.Now().Add(remaining), Remaining: remaining}
}

// call reserves the first try for this client, which is notified to ask. It returns
// false if another has come back to the first place.
func (t *ticket) call() bool {
	q := t.queue
	q.all.mu.Lock()
	defer q.all.mu.Unlock()
	switch {
	case !t.first:
		return false
	case q.called != nil:
		return true
	}
	q.called, q.until, q.held = t, driver.Now()+turnFor, nil
	q.timer = time.AfterFunc(turnFor, func() {
		q.all.mu.Lock()
		defer q.all.mu.Unlock()
		if q.called == t {
			q.end()
			q.pass()
		}
	})
	return true
}

// before returns for how long the first try belongs to another client; 0 if to
// none.
func (all *turns) before(resource, subject, leaseID string) time.Duration {
	all.mu.Lock()
	defer all.mu.Unlock()
	if q := all.by[resource]; q != nil && q.called != nil && !q.called.is(subject, leaseID) {
		return max(0, q.until-driver.Now())
	}
	return 0
}

// asked records that a client no longer needs its first try.
func (all *turns) asked(resource, subject, leaseID string) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if q := all.by[resource]; q != nil && q.called.is(subject, leaseID) {
		q.end()
		q.pass()
	}
}

// count returns how many wait for the resource.
func (all *turns) count(resource string) int {
	all.mu.Lock()
	defer all.mu.Unlock()
	if q := all.by[resource]; q != nil {
		return len(q.tickets)
	}
	return 0
}

func (q *queue) end() {
	q.timer.Stop()
	q.called = nil
}

// pass gives the first its turn, unless a client has been notified to ask.
func (q *queue) pass() {
	switch {
	case q.called != nil:
	case len(q.tickets) == 0:
		if len(q.left) == 0 && q.all.by[q.resource] == q {
			delete(q.all.by, q.resource)
		}
	case !q.tickets[0].first:
		q.tickets[0].first = true
		close(q.tickets[0].turn)
	}
}
