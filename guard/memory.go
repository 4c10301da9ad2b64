package guard

import (
	"context"
	"fmt"
	"hash/maphash"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// DefaultMaxResources is how many marks a [Memory] keeps unless told
// otherwise: up to 200 MB if a name and a lease ID have 70 bytes together, and
// twice that for the moment in which the store makes itself more room.
const DefaultMaxResources = 1 << 20

// MemoryOptions configures [NewMemory]. The zero value is the default.
type MemoryOptions struct {
	// MaxResources is how many marks are kept; 0 means [DefaultMaxResources].
	// A claim for one more resource is refused with ErrUnavailable: a mark is
	// never evicted, because forgetting one admits a stale writer.
	MaxResources int
}

// Memory forgets at restart: it is a [Store] in the memory of one process.
//
// After a restart, or on a second replica, a stale token is admitted again as
// if it were new. Use it for tests, for a single process whose resource dies
// with it, and as the reference for other stores; a service with replicas or
// restarts keeps its marks in a database.
//
// Calls that raise nothing, Mark and the Admit of a claim that is the mark or
// stale, take no lock and wait for nobody. A raise waits for other raises, and
// one in about as many as there are marks makes room, which takes about half a
// microsecond for each mark.
//
// The zero value is not usable; call [NewMemory]. It is safe for concurrent use.
type Memory struct {
	table atomic.Pointer[memoryTable] // read without the lock, replaced under it
	_     [56]byte                    // raising must not slow down those who read the pointer
	mu    sync.Mutex                  // held to raise and to retire
	max   int
}

var _ Store = (*Memory)(nil)

// NewMemory returns an empty [Memory]. opts may be nil. It panics if
// MaxResources is negative.
func NewMemory(opts *MemoryOptions) *Memory {
	limit := DefaultMaxResources
	if opts != nil && opts.MaxResources != 0 {
		limit = opts.MaxResources
	}
	if limit < 0 {
		panic(fmt.Sprintf("guard: MemoryOptions.MaxResources is %d, must not be negative", limit))
	}
	m := &Memory{max: limit}
	m.table.Store((&memoryTable{seed: maphash.MakeSeed()}).rebuilt(NoToken, 0, nil))
	return m
}

// Admit implements [Store].
func (m *Memory) Admit(ctx context.Context, claim Claim) (Mark, error) {
	if err := claim.Validate(); err != nil {
		return Mark{}, err
	}
	if err := ctx.Err(); err != nil {
		return Mark{}, Unavailable("admit", claim, err)
	}
	t := m.table.Load()
	hash := t.hash(claim.Resource) // by the seed that all tables have
	mark, _ := t.mark(hash, hash, claim.Resource)
	if mark.Token >= claim.Token { // nothing to raise: marks only grow, so this verdict stands
		mark.LeaseID = unshared(mark.LeaseID, claim.LeaseID)
		return mark, Decide(SameOrNewer, mark, claim)
	}

	m.mu.Lock()
	defer m.mu.Unlock()
	t = m.table.Load()
	mark, known := t.mark(hash, hash, claim.Resource)
	mark.LeaseID = unshared(mark.LeaseID, claim.LeaseID)
	if err := Decide(SameOrNewer, mark, claim); err != nil || mark.Token == claim.Token {
		return mark, err // another caller was faster
	}
	if !known && t.count >= m.max {
		return mark, Unavailable("admit", claim, fmt.Errorf("the in-memory store is full: MaxResources is %d", m.max))
	}
	if n := recordLen(claim.Resource, claim.LeaseID); !t.hasRoom(n) {
		t = t.rebuilt(t.floor, n, nil)
		m.table.Store(t)
	}
	t.set(hash, claim, time.Now().UnixNano())
	return Mark{Token: claim.Token, LeaseID: claim.LeaseID}, nil
}

// unshared returns leaseID out of the table's memory, which an error that is
// kept would keep as a whole; nearly always it is the claim's.
func unshared(leaseID, claimed string) string {
	if leaseID == claimed {
		return claimed
	}
	return strings.Clone(leaseID)
}

// Mark implements [Store]. It allocates nothing: the lease ID shares the
// store's memory, so clone it in a Mark that is kept for long.
func (m *Memory) Mark(ctx context.Context, resource string) (Mark, error) {
	if err := ctx.Err(); err != nil {
		return Mark{}, Unavailable("read mark", Claim{Resource: resource}, err)
	}
	t := m.table.Load()
	hash := t.hash(resource)
	mark, known := t.mark(hash, hash, resource)
	if !known { // a name that has a mark was valid when it was raised
		if err := ValidateResource(resource); err != nil {
			return Mark{}, err
		}
	}
	return mark, nil
}

// Retire implements [Store]. Nothing is raised while it runs.
func (m *Memory) Retire(ctx context.Context, before time.Time) (Retired, error) {
	if err := ctx.Err(); err != nil {
		return Retired{}, Unavailable("retire", Claim{}, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.table.Load()
	r := Retired{Floor: t.floor}
	keep := func(raised int64) bool { return !time.Unix(0, raised).Before(before) }
	t.each(func(raised int64, c Claim) {
		if !keep(raised) {
			r.Count++
			r.Floor = max(r.Floor, c.Token)
		}
	})
	if r.Count > 0 {
		m.table.Store(t.rebuilt(r.Floor, 0, keep))
	}
	return r, nil
}
