package lockhttp

import (
	"context"
	"sync"

	"github.com/fencepost-go/fencepost/guard"
)

// work counts what Close waits for: acquires and exchanges with the issuer. A
// sync.WaitGroup would not do, since requests arrive while Close waits.
type work struct {
	mu   sync.Mutex
	n    int
	idle chan struct{} // closed when nothing works; nil unless a Close waits
	done bool          // nothing begins any more
}

// begin counts until end; false if Close no longer waits.
func (w *work) begin() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.done {
		w.n++
	}
	return !w.done
}

func (w *work) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.n--; w.n == 0 && w.idle != nil {
		w.done = true // at once, or new requests could keep Close waiting
		close(w.idle)
		w.idle = nil
	}
}

// spawn runs f in a goroutine; false if Close no longer waits for it.
func (w *work) spawn(f func()) bool {
	if !w.begin() {
		return false
	}
	go func() {
		defer w.end()
		f()
	}()
	return true
}

// drain waits until nothing works, and from then on nothing begins.
func (w *work) drain(ctx context.Context) (err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.n > 0 {
		if w.idle == nil {
			w.idle = make(chan struct{})
		}
		idle := w.idle
		w.mu.Unlock()
		select {
		case <-idle:
		case <-ctx.Done():
			err = guard.Unavailable("close", guard.Claim{}, context.Cause(ctx))
		}
		w.mu.Lock()
	}
	w.done = true
	return err
}
