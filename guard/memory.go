package guard

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// maxResources is how many marks a Memory holds. With names and lease IDs of 70 bytes in
// total they take about 300 MB.
const maxResources = 1 << 20

// Memory is a [Store] in the memory of one process: it loses its marks at
// restart.
//
// After a restart, or on a second replica, a stale token is admitted again as
// if it were new. Use it for tests, for a single process whose resource dies
// with it, and as the reference for other stores; a service that has replicas
// or restarts should keep its marks in a database.
//
// It holds 2^20 marks. A claim for one more resource is refused with ErrUnavailable: a mark is
// never evicted, because evicting one admits a stale writer.
//
// The zero value is not usable; call [NewMemory]. It is safe for concurrent use;
// calls that raise nothing share the lock.
type Memory struct {
	mu    sync.RWMutex
	marks map[string]raisedMark
	floor Token
	max   int
}

// raisedMark is a mark and when it was raised. It is as small as possible,
// because the cost of a look-up among many marks is what it reads from memory.
type raisedMark struct {
	token   Token
	leaseID string
	at      int64 // nanoseconds since 1970
}

var _ Store = (*Memory)(nil)

// NewMemory returns an empty [Memory].
func NewMemory() *Memory { return &Memory{marks: map[string]raisedMark{}, max: maxResources} }

// mark returns the mark of resource, or the floor and false if it has none. The
// caller holds the lock.
func (m *Memory) mark(resource string) (Mark, bool) {
	if r, ok := m.marks[resource]; ok {
		return Mark{Token: r.token, LeaseID: r.leaseID}, true
	}
	return Mark{Token: m.floor, Floor: m.floor != NoToken}, false
}

// Admit implements [Store].
func (m *Memory) Admit(ctx context.Context, claim Claim) (Mark, error) {
	if err := claim.Validate(); err != nil {
		return Mark{}, err
	}
	if err := ctx.Err(); err != nil {
		return Mark{}, Unavailable("admit", claim, context.Cause(ctx))
	}
	m.mu.RLock()
	mark, _ := m.mark(claim.Resource)
	m.mu.RUnlock()
	if mark.Token >= claim.Token { // nothing to raise: marks only grow, so this verdict stands
		return mark, Decide(SameOrNewer, mark, claim)
	}
	return m.raise(claim)
}

// raise makes claim the mark of its resource if it is above the mark, which
// another caller may have raised since this one read it.
func (m *Memory) raise(claim Claim) (Mark, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	mark, known := m.mark(claim.Resource)
	if err := Decide(SameOrNewer, mark, claim); err != nil || mark.Token == claim.Token {
		return mark, err
	}
	if !known && len(m.marks) >= m.max {
		return mark, Unavailable("admit", claim, fmt.Errorf("the in-memory store is full: MaxResources is %d", m.max))
	}
	// A copy, so that the store does not keep alive the request that the claim
	// was sliced from. One copy for both, because a reader of the name also reads
	// the ID.
	both := claim.Resource + claim.LeaseID
	resource, leaseID := both[:len(claim.Resource)], both[len(claim.Resource):]
	m.marks[resource] = raisedMark{claim.Token, leaseID, time.Now().UnixNano()}
	return Mark{Token: claim.Token, LeaseID: leaseID}, nil
}

// Mark implements [Store].
func (m *Memory) Mark(ctx context.Context, resource string) (Mark, error) {
	if err := ctx.Err(); err != nil {
		return Mark{}, Unavailable("read mark", Claim{Resource: resource}, err)
	}
	m.mu.RLock()
	mark, known := m.mark(resource)
	m.mu.RUnlock()
	if !known { // a name that has a mark was valid when it was raised
		if err := ValidateResource(resource); err != nil {
			return Mark{}, err
		}
	}
	return mark, nil
}

// Retire implements [Store].
func (m *Memory) Retire(ctx context.Context, before time.Time) (Retired, error) {
	if err := ctx.Err(); err != nil {
		return Retired{}, Unavailable("retire", Claim{}, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var count int64
	for resource, r := range m.marks {
		if time.Unix(0, r.at).Before(before) {
			count++
			m.floor = max(m.floor, r.token)
			delete(m.marks, resource)
		}
	}
	return Retired{Count: count, Floor: m.floor}, nil
}
