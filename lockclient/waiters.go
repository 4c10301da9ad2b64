package lockclient

import (
	"slices"
	"sync"
)

// waiters are the waiting acquires of one client, by resource and in the order
// of their arrival. Only the first of each resource asks the server; the others
// wait for their turn. So a release wakes one waiter of a process and not all,
// and a process makes one connection busy however many wait in it.
type waiters struct {
	mu sync.Mutex
	by map[string]*line
}

// line is the waiters for one resource.
type line struct {
	places []*place
	held   *HeldError // what the last of them to ask was told
}

// place is one waiter's place in its line.
type place struct {
	all      *waiters
	resource string
	line     *line
	turn     chan struct{} // closed when it may ask
	hasTurn  bool
}

// join takes the last place. It has its turn at once if nobody is before it.
func (w *waiters) join(resource string) *place {
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
	p := &place{all: w, resource: resource, line: l, turn: make(chan struct{})}
	l.places = append(l.places, p)
	l.pass(false)
	return p
}

// first reports whether it has its turn.
func (p *place) first() bool {
	select {
	case <-p.turn:
		return true
	default:
		return false
	}
}

// pass gives the first its turn, or everybody.
func (l *line) pass(everybody bool) {
	for i, p := range l.places {
		if !p.hasTurn && (i == 0 || everybody) {
			p.hasTurn = true
			close(p.turn)
		}
	}
}

// leave gives the place up, and the turn to the next. After a failure everybody
// gets his turn: in a line, each would first wait for the time-outs of those
// before him.
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

// note keeps who has the lease, for those whose wait ends before their turn.
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
