package guard

// LockMemoryForReading holds m's lock as a reader does, until unlock is called.
func LockMemoryForReading(m *Memory) (unlock func()) {
	m.mu.RLock()
	return m.mu.RUnlock
}

// RaiseMemory raises as Admit does after it has read the mark.
func RaiseMemory(m *Memory, claim Claim) (Mark, error) { return m.raise(claim) }

// NewMemoryOf is a Memory that holds max marks.
func NewMemoryOf(max int) *Memory { return &Memory{marks: map[string]raisedMark{}, max: max} }
