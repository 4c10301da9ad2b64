package lockclient

import (
	"context"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"
	"sync"
	"sync/atomic"
	"time"
)

// sleepers finds waiters that slept through a release. Who looks by himself, as
// every waiter does after a while, and finds the lease free, must have been rung
// for, unless his connection has broken; on a busy machine the notification is
// read later than he looks. The time that a wait takes says nothing there.
type sleepers struct {
	*postgres
	mu     sync.Mutex
	marked map[string]<-chan struct{} // by lease ID, what was told to last while it sleeps

	looked, missed atomic.Int64
}

func (s *sleepers) acquire(ctx context.Context, r request) (answer, error) {
	s.mu.Lock()
	delete(s.marked, r.leaseID) // it woke
	s.mu.Unlock()
	return s.postgres.acquire(ctx, r)
}

func (s *sleepers) watch(ctx context.Context, r request) (*HeldError, bool, error) {
	now := s.listening()
	held, marked, err := s.postgres.watch(ctx, r)
	s.mu.Lock()
	down, slept := s.marked[r.leaseID]
	delete(s.marked, r.leaseID)
	if err == nil && held != nil && marked && now != nil {
		s.marked[r.leaseID] = now
	}
	s.mu.Unlock()
	if slept {
		s.looked.Add(1)
	}
	if slept && err == nil && held == nil {
		for end := time.Now().Add(patience); !over(down) && !s.rung(r.resource); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				s.missed.Add(1)
				break
			}
		}
	}
	return held, marked, err
}

// rung reports whether a waiter for the resource has been rung for.
func (s *sleepers) rung(resource string) bool {
	s.listener.mu.Lock()
	defer s.listener.mu.Unlock()
	for sub := range s.listener.subs {
		if sub.topic == pglease.Topic(resource) && len(sub.rung) > 0 {
			return true
		}
	}
	return false
}

func over(down <-chan struct{}) bool {
	select {
	case <-down:
		return true
	default:
		return false
	}
}
