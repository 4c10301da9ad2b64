// Package waiting is how acquires wait for a lease, in a client and in the lock
// server: those for one resource queue, and only the first asks the issuer, and after a
// failure two more. So a release wakes one waiter of a process and not all, and a process keeps one
// request busy however many wait in it.
package waiting

import (
	"slices"
	"sync"
	"time"

	"github.com/fencepost-go/fencepost/lockclient/driver"
)

const (
	// placeFor is how long the place of a waiter that has left is kept, as
	// [driver.Watching] promises: remote waiters watch again from time to time.
	placeFor = 5 * time.Second
	// placesMost bounds how many places are kept for a subject.
	placesMost = 1000
	// CallFor is how long the first try is reserved for a waiter that was notified
	// to ask. If it does not ask, the next one has a quarter of that, and so on, so that
	// however many never ask, they delay those that do by less than CallFor and a half;
	// until one asks, even too late.
	CallFor = time.Second
)

// Name tells remote waiters apart, which leave and come back. The others have none.
type Name struct{ Subject, LeaseID string }

// Queues are the queues of one process. The zero value is ready.
type Queues struct {
	mu   sync.Mutex
	by   map[string]*queue // by resource
	left map[string]int    // how many places are kept, by subject
}

// queue is the waiters for one resource.
type queue struct {
	all      *Queues
	resource string
	places   []*Place // in the order of their numbers
	next     int      // the next new number
	left     map[Name]kept
	held     *driver.HeldError // what the last to ask knows of the lease
	seen     time.Duration     // when, by driver.Now
	called   *Place            // the one that was notified to ask and has not yet
	until    time.Duration     // for how long it is waited for
	missed   int               // how many were called, one after the other, and did not ask
}

// kept is the place of a waiter that has left and may come back.
type kept struct {
	number int
	until  time.Duration
}

// Place is one waiter's place.
type Place struct {
	queue  *queue
	name   Name
	number int
	turn   chan struct{} // closed when it may ask
	may    bool          // it is closed
}

// Join takes the last place, or the one that a waiter of this name has, or had until
// a moment ago. It may ask at once if nobody is before it.
func (all *Queues) Join(resource string, name Name) (p *Place, first bool) {
	all.mu.Lock()
	defer all.mu.Unlock()
	q := all.by[resource]
	if q == nil {
		q = &queue{all: all, resource: resource, left: map[Name]kept{}}
		if all.by == nil {
			all.by, all.left = map[string]*queue{}, map[string]int{}
		}
		all.by[resource] = q
	}
	p = &Place{queue: q, name: name, number: q.next, turn: make(chan struct{})}
	if name != (Name{}) {
		// It may come back before its process is seen to have left.
		if n := slices.IndexFunc(q.places, func(old *Place) bool { return old.name == name }); n >= 0 {
			p.number = q.places[n].number
			q.remove(q.places[n])
		} else if old, ok := q.left[name]; ok {
			p.number = old.number
			q.forget(name)
		}
	}
	if p.number == q.next {
		q.next++
	}
	n, _ := slices.BinarySearchFunc(q.places, p.number, func(other *Place, number int) int { return other.number - number })
	q.places = slices.Insert(q.places, n, p)
	q.pass()
	return p, p.may
}

// Turn is closed when the waiter may ask, until [Place.Yield].
func (p *Place) Turn() <-chan struct{} {
	p.queue.all.mu.Lock()
	defer p.queue.all.mu.Unlock()
	return p.turn
}

// Yield gives up the turn of a waiter that is not the first or may not ask while
// another was called, and says whether that is so: somebody has come back to the first
// place, or a failure made others ask.
func (p *Place) Yield() bool {
	q := p.queue
	q.all.mu.Lock()
	defer q.all.mu.Unlock()
	return q.yield(p)
}

func (q *queue) yield(p *Place) bool {
	if len(q.places) > 0 && q.places[0] == p && (q.called == nil || q.called == p) {
		return false
	}
	if p.may {
		p.may, p.turn = false, make(chan struct{})
	}
	q.pass()
	return true
}

// Call reserves the first try for a waiter that is notified to ask, and takes it out
// of the queue when that time has passed. It returns false if somebody else is the
// first.
func (p *Place) Call() bool {
	q := p.queue
	q.all.mu.Lock()
	defer q.all.mu.Unlock()
	if q.yield(p) {
		return false
	}
	patience := CallFor >> (2 * q.missed)
	q.called, q.until, q.held = p, driver.Now()+patience, nil
	time.AfterFunc(patience, func() {
		q.all.mu.Lock()
		defer q.all.mu.Unlock()
		if q.called == p {
			q.missed++
			q.leave(p, true)
		}
	})
	return true
}

// Asked records that a waiter that was called no longer needs its first try.
func (all *Queues) Asked(resource string, name Name) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if q := all.by[resource]; q != nil && q.called != nil && q.called.name == name {
		q.missed = 0
		q.leave(q.called, true)
	}
}

// Reserved returns for how long the first try belongs to another waiter; 0 if to none.
func (all *Queues) Reserved(resource string, name Name) time.Duration {
	all.mu.Lock()
	defer all.mu.Unlock()
	q := all.by[resource]
	if q == nil {
		return 0
	}
	if _, late := q.left[name]; late {
		q.missed = 0 // it was called and asks after its time: those that are called need longer
	}
	if q.called != nil && q.called.name != name {
		return max(0, q.until-driver.Now())
	}
	return 0
}

// Leave gives the place up, and the turn to the next; after a failure see [Place.Fail].
func (p *Place) Leave(failure bool) {
	q := p.queue
	q.all.mu.Lock()
	defer q.all.mu.Unlock()
	q.leave(p, false)
	if failure {
		q.fail()
	}
}

// Away gives the place up, which is kept for a moment unless the waiter was called:
// it comes back.
func (p *Place) Away() {
	q := p.queue
	q.all.mu.Lock()
	defer q.all.mu.Unlock()
	if q.called != p {
		q.leave(p, true)
	}
}

// Fail says that the issuer failed this waiter. The first two of those that ask by
// themselves get a turn, and two more for each of them that fails: otherwise each would
// first wait for the timeouts of all ahead, or all would ask at once.
func (p *Place) Fail() {
	p.queue.all.mu.Lock()
	defer p.queue.all.mu.Unlock()
	p.queue.fail()
}

func (q *queue) fail() {
	more := 2
	for _, other := range q.places {
		if more == 0 || q.called != nil {
			return
		}
		if other.name == (Name{}) && !other.may {
			other.begin()
			more--
		}
	}
}

func (q *queue) leave(p *Place, keep bool) {
	if q.remove(p) && keep && q.all.left[p.name.Subject] < placesMost {
		until := driver.Now() + placeFor
		q.left[p.name] = kept{p.number, until}
		q.all.left[p.name.Subject]++
		time.AfterFunc(placeFor, func() {
			q.all.mu.Lock()
			defer q.all.mu.Unlock()
			if q.left[p.name].until == until {
				q.forget(p.name)
				q.pass() // the queue may be of no use any more
			}
		})
	}
	q.pass()
}

// remove takes a place out of the queue; false if it is not there any more.
func (q *queue) remove(p *Place) bool {
	n := slices.Index(q.places, p)
	if n < 0 {
		return false
	}
	q.places = slices.Delete(q.places, n, n+1)
	if q.called == p {
		q.called = nil
	}
	if p.may {
		p.may, p.turn = false, make(chan struct{})
	}
	return true
}

// forget drops the place of a waiter that has left.
func (q *queue) forget(name Name) {
	delete(q.left, name)
	if q.all.left[name.Subject]--; q.all.left[name.Subject] == 0 {
		delete(q.all.left, name.Subject)
	}
}

// pass gives the first its turn.
func (q *queue) pass() {
	switch {
	case q.called != nil: // who leaves or runs out of time passes it on
	case len(q.places) > 0:
		q.places[0].begin()
	case len(q.left) == 0 && q.all.by[q.resource] == q:
		delete(q.all.by, q.resource)
	}
}

func (p *Place) begin() {
	if !p.may {
		p.may = true
		close(p.turn)
	}
}

// Note records who has the lease, for those behind.
func (p *Place) Note(held *driver.HeldError) {
	p.queue.all.mu.Lock()
	defer p.queue.all.mu.Unlock()
	p.queue.held, p.queue.seen = held, driver.Now()
}

// Noted returns what the waiters for a resource noted last, with what remains of the
// lease by now; nil if nothing was, or if the lease is over.
func (all *Queues) Noted(resource string) *driver.HeldError {
	all.mu.Lock()
	defer all.mu.Unlock()
	q := all.by[resource]
	if q == nil || q.held == nil {
		return nil
	}
	held := *q.held
	if held.Remaining -= driver.Now() - q.seen; held.Remaining <= 0 {
		return nil
	}
	return &held
}

// Count returns how many wait for the resource.
func (all *Queues) Count(resource string) int {
	all.mu.Lock()
	defer all.mu.Unlock()
	if q := all.by[resource]; q != nil {
		return len(q.places)
	}
	return 0
}
