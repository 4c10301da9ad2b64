package guard

import (
	"errors"
	"sync"
	"testing"
	"time"
)

// TestMemoryReadsTakeNoLock: what raises nothing must wait neither for readers
// nor for a raise, or the calls of one holder would queue up behind each other.
func TestMemoryReadsTakeNoLock(t *testing.T) {
	m := NewMemory(nil)
	current := Claim{Resource: "r", Token: 10, LeaseID: "a"}
	if _, err := m.Admit(t.Context(), current); err != nil {
		t.Fatal(err)
	}
	m.mu.Lock() // a raise in the middle of its call
	done := make(chan error, 1)
	go func() {
		_, same := m.Admit(t.Context(), current)
		_, stale := m.Admit(t.Context(), Claim{Resource: "r", Token: 9, LeaseID: "a"})
		_, read := m.Mark(t.Context(), "r")
		if !errors.Is(stale, ErrStale) {
			same = errors.Join(same, errors.New("token 9 is not stale"))
		}
		done <- errors.Join(same, read)
	}()
	select {
	case err := <-done:
		m.mu.Unlock()
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		m.mu.Unlock()
		t.Fatal("the calls wait for the lock")
	}

	// The control: a raise does wait.
	m.mu.Lock()
	go func() {
		_, err := m.Admit(t.Context(), Claim{Resource: "r", Token: 11, LeaseID: "b"})
		done <- err
	}()
	select {
	case err := <-done:
		t.Errorf("a raise went through beside another: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	m.mu.Unlock()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestMemoryDecidesAgainUnderTheLock: between reading and locking another may
// have raised the mark. Callers that waited for one writer all read the same
// old mark, so that every one of them comes to the second decision.
func TestMemoryDecidesAgainUnderTheLock(t *testing.T) {
	const callers, rounds = 8, 5 // without it the highest would have to be last five times in a row
	for range rounds {
		m := NewMemory(nil)
		m.mu.Lock()
		var wg sync.WaitGroup
		for i := range callers {
			wg.Go(func() {
				if _, err := m.Admit(t.Context(), Claim{Resource: "r", Token: Token(i + 1)}); err != nil && !errors.Is(err, ErrStale) {
					t.Error(err)
				}
			})
		}
		time.Sleep(5 * time.Millisecond) // until they wait
		m.mu.Unlock()
		wg.Wait()
		if mark, err := m.Mark(t.Context(), "r"); err != nil || mark.Token != callers {
			t.Errorf("the mark is %d, %v; want %d, the highest admitted", mark.Token, err, callers)
		}
	}
}
