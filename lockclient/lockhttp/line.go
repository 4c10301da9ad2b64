package lockhttp

import (
	"cmp"
	"sync"
	"time"

	"github.com/fencepost-go/fencepost/lockclient/driver"
)

// lines are the acquires that wait in this server, by resource. One in each
// line asks the issuer; the others wait for their turn, which costs the issuer
// nothing.
type lines struct {
	mu sync.Mutex
	by map[string]*line
}

// line is the waiters for one resource.
type line struct {
	resource string
	// turn has room for the one whose turn it is. The runtime admits blocked
	// senders in the order in which they came.
	turn   chan struct{}
	failed chan struct{} // closed when the issuer failed; err says how
	err    error

	waiting int // guarded by the lines' mutex

	mu   sync.Mutex
	held *driver.HeldError // the refusal of the last to ask
	// since is when the first of the latest failures in a row began; 0 if the
	// last to ask had a response.
	since time.Duration
}

func (all *lines) busy(resource string) bool { return all.count(resource) > 0 }

// count returns how many wait for the resource.
func (all *lines) count(resource string) int {
	all.mu.Lock()
	defer all.mu.Unlock()
	if l := all.by[resource]; l != nil {
		return l.waiting
	}
	return 0
}

func (all *lines) join(resource string) *line {
	all.mu.Lock()
	defer all.mu.Unlock()
	l := all.by[resource]
	if l == nil {
		l = &line{resource: resource, turn: make(chan struct{}, 1), failed: make(chan struct{})}
		if all.by == nil {
			all.by = map[string]*line{}
		}
		all.by[resource] = l
	}
	l.waiting++
	return l
}

func (all *lines) leave(l *line) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if l.waiting--; l.waiting == 0 && all.by[l.resource] == l {
		delete(all.by, l.resource)
	}
}

// fail ends the wait of everybody in the queue; those that come later begin
// another.
func (all *lines) fail(l *line, err error) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.by[l.resource] == l {
		delete(all.by, l.resource)
		l.err = err
		close(l.failed)
	}
}

// failing records an attempt and returns for how long all have failed.
func (l *line) failing(failed bool, began time.Duration) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !failed {
		l.since = 0
		return 0
	}
	l.since = cmp.Or(l.since, began)
	return driver.Now() - l.since
}

func (l *line) note(held *driver.HeldError) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = held
}

// last returns what is known about the holder; nil if nothing is.
func (l *line) last() *driver.HeldError {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held
}
