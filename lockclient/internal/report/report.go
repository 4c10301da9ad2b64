// Package report hands what has happened to loggers and observers. They may block, on
// a full pipe for example, and must not delay what happens next.
package report

import (
	"context"
	"sync"
)

// Most is how many events wait for a logger or an observer that blocks.
const Most = 1024

// Queue calls functions one after the other, in a goroutine that ends when none is left.
// The zero value is ready. It is safe for concurrent use.
type Queue struct {
	// Lost gets how many events were dropped since its last call. It may be nil.
	Lost func(n int)

	mu      sync.Mutex
	waiting []func()
	running bool
	lost    int
	idle    chan struct{} // closed when none is left; nil unless Drain waits
}

// Add has f called later, and returns at once. If Most wait already, f is dropped and
// counted.
func (q *Queue) Add(f func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) >= Most {
		q.lost++
		return
	}
	q.waiting = append(q.waiting, f)
	if !q.running {
		q.running = true
		go q.run()
	}
}

func (q *Queue) run() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.waiting) > 0 || q.lost > 0 {
		var f func()
		if lost := q.lost; len(q.waiting) > 0 {
			f, q.waiting = q.waiting[0], q.waiting[1:]
		} else {
			q.lost = 0
			f = func() {
				if q.Lost != nil {
					q.Lost(lost)
				}
			}
		}
		q.mu.Unlock()
		f()
		q.mu.Lock()
	}
	q.running = false
	if q.idle != nil {
		close(q.idle)
		q.idle = nil
	}
}

// Drain waits until none is left, or until ctx ends.
func (q *Queue) Drain(ctx context.Context) {
	q.mu.Lock()
	if !q.running {
		q.mu.Unlock()
		return
	}
	if q.idle == nil {
		q.idle = make(chan struct{})
	}
	idle := q.idle
	q.mu.Unlock()
	select {
	case <-idle:
	case <-ctx.Done():
	}
}
