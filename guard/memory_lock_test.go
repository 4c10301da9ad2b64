package guard

import (
	"errors"
	"runtime"
	"strings"
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
	case <-time.After(time.Minute):
		m.mu.Unlock()
		t.Fatal("the calls wait for the lock")
	}

	// The control: a raise does wait.
	m.mu.Lock()
	go func() {
		_, err := m.Admit(t.Context(), Claim{Resource: "r", Token: 11, LeaseID: "b"})
		done <- err
	}()
	untilWaiting(t, 1)
	select {
	case err := <-done:
		t.Errorf("a raise went through beside another: %v", err)
	default:
	}
	m.mu.Unlock()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestMemoryDecidesAgainUnderTheLock: between reading and locking another may
// have raised the mark. Callers that waited for one writer all read the same
// old mark, so that every one of them comes to the second decision; they get
// the lock in the order in which they came, the highest token first.
func TestMemoryDecidesAgainUnderTheLock(t *testing.T) {
	const callers = 8
	m := NewMemory(nil)
	m.mu.Lock()
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			token := Token(callers - i)
			if _, err := m.Admit(t.Context(), Claim{Resource: "r", Token: token}); errors.Is(err, ErrStale) != (token < callers) {
				t.Errorf("token %d: %v", token, err)
			}
		})
		untilWaiting(t, i+1)
	}
	m.mu.Unlock()
	wg.Wait()
	if mark, err := m.Mark(t.Context(), "r"); err != nil || mark.Token != callers {
		t.Errorf("the mark is %d, %v; want %d, the highest admitted", mark.Token, err, callers)
	}
}

// untilWaiting returns when n goroutines wait for the lock in Admit.
func untilWaiting(t *testing.T, n int) {
	t.Helper()
	stacks := make([]byte, 1<<20)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		waiting := 0
		for _, g := range strings.Split(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
			if strings.Contains(g, "[sync.Mutex.Lock") && strings.Contains(g, "guard.(*Memory).Admit(") {
				waiting++
			}
		}
		if waiting == n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d callers wait for the lock, want %d", waiting, n)
		}
	}
}
