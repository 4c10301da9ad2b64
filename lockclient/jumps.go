package lockclient

import "sync"

// jumps tells sleepers that the clock was moved, as a test's clock can be: their
// timers know nothing of it. A nil one is for a clock that nobody moves.
type jumps struct {
	mu     sync.Mutex
	next   chan struct{}
	leases map[*Lease]struct{}
}

func newJumps() *jumps {
	return &jumps{next: make(chan struct{}), leases: map[*Lease]struct{}{}}
}

// moved returns a channel that is closed at the next jump.
func (j *jumps) moved() <-chan struct{} {
	if j == nil {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.next
}

// jump wakes the sleepers, and ends the leases whose deadline has passed.
func (j *jumps) jump() {
	j.mu.Lock()
	close(j.next)
	j.next = make(chan struct{})
	leases := make([]*Lease, 0, len(j.leases))
	for l := range j.leases {
		leases = append(leases, l)
	}
	j.mu.Unlock()
	for _, l := range leases {
		l.Err() // ends what is over
	}
}

// track has jump look after a lease until untrack.
func (j *jumps) track(l *Lease) {
	if j != nil {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.leases[l] = struct{}{}
	}
}

func (j *jumps) untrack(l *Lease) {
	if j != nil {
		j.mu.Lock()
		defer j.mu.Unlock()
		delete(j.leases, l)
	}
}
