package lockhttp

import (
	"slices"
	"sync"
	"time"

	"github.com/fencepost-go/fencepost/lockclient/driver"
)

// turnFor is how long the first try is reserved for a client that was told to
// ask.
const turnFor = time.Second

// turns are the clients that wait by GET /v1/watch, by resource. The first for
// a resource watches at the issuer and is told to ask; the others wait for
// their turn, so that a release wakes one of them and costs the issuer one
// attempt.
type turns struct {
	mu sync.Mutex
	by map[string]*queue
}

// queue is the clients that wait for one resource.
type queue struct {
	all      *turns
	resource string
	tickets  []*ticket
	held     *driver.HeldError // what the last client to be first was told
	seen     time.Duration     // when, by driver.Now
	called   *ticket           // the one that was told to ask and has not yet
	timer    *time.Timer       // ends called
	until    time.Duration
}

// ticket is one client's place.
type ticket struct {
	queue            *queue
	subject, leaseID string
	turn             chan struct{} // closed when it is the first
	first            bool
}

// join takes the last place, or the first for a client that was told to ask and
// comes back because somebody else was faster.
func (all *turns) join(resource, subject, leaseID string) *ticket {
	all.mu.Lock()
	defer all.mu.Unlock()
	q := all.by[resource]
	if q == nil {
		q = &queue{all: all, resource: resource}
		if all.by == nil {
			all.by = map[string]*queue{}
		}
		all.by[resource] = q
	}
	t := &ticket{queue: q, subject: subject, leaseID: leaseID, turn: make(chan struct{})}
	if q.called.is(subject, leaseID) {
		q.end()
		q.tickets = slices.Insert(q.tickets, 0, t)
	} else {
		q.tickets = append(q.tickets, t)
	}
	q.pass()
	return t
}

func (t *ticket) is(subject, leaseID string) bool {
	return t != nil && t.subject == subject && t.leaseID == leaseID
}

// leave gives the place up.
func (t *ticket) leave() {
	q := t.queue
	q.all.mu.Lock()
	defer q.all.mu.Unlock()
	if n := slices.Index(q.tickets, t); n >= 0 {
		q.tickets = slices.Delete(q.tickets, n, n+1)
	}
	q.pass()
}

// note records who has the lease, for those behind.
func (t *ticket) note(held *driver.HeldError) {
	t.queue.all.mu.Lock()
	defer t.queue.all.mu.Unlock()
	t.queue.held, t.queue.seen = held, driver.Now()
}

// known returns who has the lease as far as the first was told; for a lease that
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

// call reserves the first try for this client, which is told to ask.
func (t *ticket) call() {
	q := t.queue
	q.all.mu.Lock()
	defer q.all.mu.Unlock()
	if q.called != nil {
		return
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

// pass gives the first its turn, unless a client has been told to ask.
func (q *queue) pass() {
	switch {
	case q.called != nil:
	case len(q.tickets) == 0:
		if q.all.by[q.resource] == q {
			delete(q.all.by, q.resource)
		}
	case !q.tickets[0].first:
		q.tickets[0].first = true
		close(q.tickets[0].turn)
	}
}
