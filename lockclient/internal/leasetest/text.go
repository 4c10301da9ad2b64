package leasetest

import (
	"strings"
	"sync"
)

// Text is what a logger has written, possibly in the background. The zero value is
// empty. It is safe for concurrent use.
type Text struct {
	mu sync.Mutex
	b  strings.Builder
}

func (t *Text) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.b.Write(p)
}

// String returns all of it.
func (t *Text) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.b.String()
}

// Reset empties it.
func (t *Text) Reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b.Reset()
}
