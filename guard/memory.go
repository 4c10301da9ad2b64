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
// otherwise: about 200 MB of short names.
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
// The zero value is not usable; call [NewMemory]. It is safe for concurrent use.
type Memory struct {
	seed   maphash.Seed
	max    int64
	count  atomic.Int64
	shards [memoryShards]memoryShard
}

// Many shards keep concurrent writers of different resources apart; a power of
// two makes choosing one a mask.
const memoryShards = 64

type memoryShard struct {
	mu    sync.RWMutex
	floor Token
	marks map[string]memoryMark
	_     [24]byte // a shard to a cache line
}

type memoryMark struct {
	token    Token
	leaseID  string
	raisedAt time.Time
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
	m := &Memory{seed: maphash.MakeSeed(), max: int64(limit)}
	for i := range m.shards {
		m.shards[i].marks = make(map[string]memoryMark)
	}
	return m
}

func (m *Memory) shard(resource string) *memoryShard {
	return &m.shards[maphash.String(m.seed, resource)&(memoryShards-1)]
}

// mark returns the mark of resource; the caller holds s.mu.
func (s *memoryShard) mark(resource string) (mark Mark, known bool) {
	if v, ok := s.marks[resource]; ok {
		return Mark{Token: v.token, LeaseID: v.leaseID}, true
	}
	return Mark{Token: s.floor, Floor: s.floor != NoToken}, false
}

// Admit implements [Store].
func (m *Memory) Admit(ctx context.Context, claim Claim) (Mark, error) {
	if err := claim.Validate(); err != nil {
		return Mark{}, err
	}
	if err := ctx.Err(); err != nil {
		return Mark{}, Unavailable("admit", claim, err)
	}
	s := m.shard(claim.Resource)
	s.mu.RLock()
	mark, _ := s.mark(claim.Resource)
	s.mu.RUnlock()
	if mark.Token >= claim.Token { // nothing to raise: marks only grow, so this verdict stands
		return mark, Decide(SameOrNewer, mark, claim)
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	mark, known := s.mark(claim.Resource)
	if err := Decide(SameOrNewer, mark, claim); err != nil {
		return mark, err
	}
	if !known {
		if m.count.Add(1) > m.max {
			m.count.Add(-1)
			return mark, Unavailable("admit", claim, fmt.Errorf("the in-memory store is full: MaxResources is %d", m.max))
		}
	}
	if mark.Token != claim.Token {
		// A copy, because names are often slices of a request's whole header,
		// which a mark would keep alive for as long as it lives. One for both,
		// so that comparing them touches one place in memory.
		var b strings.Builder
		b.Grow(len(claim.Resource) + len(claim.LeaseID))
		b.WriteString(claim.Resource)
		b.WriteString(claim.LeaseID)
		resource, leaseID := b.String()[:len(claim.Resource)], b.String()[len(claim.Resource):]
		s.marks[resource] = memoryMark{token: claim.Token, leaseID: leaseID, raisedAt: time.Now()}
	}
	return Mark{Token: claim.Token, LeaseID: claim.LeaseID}, nil
}

// Mark implements [Store].
func (m *Memory) Mark(ctx context.Context, resource string) (Mark, error) {
	if err := ctx.Err(); err != nil {
		return Mark{}, Unavailable("read mark", Claim{Resource: resource}, err)
	}
	s := m.shard(resource)
	s.mu.RLock()
	mark, known := s.mark(resource)
	s.mu.RUnlock()
	if !known { // a name that has a mark was valid when it was raised
		if err := ValidateResource(resource); err != nil {
			return Mark{}, err
		}
	}
	return mark, nil
}

// Retire implements [Store]. It locks the whole store while it runs.
func (m *Memory) Retire(ctx context.Context, before time.Time) (Retired, error) {
	if err := ctx.Err(); err != nil {
		return Retired{}, Unavailable("retire", Claim{}, err)
	}
	for i := range m.shards {
		m.shards[i].mu.Lock()
		defer m.shards[i].mu.Unlock()
	}
	r := Retired{Floor: m.shards[0].floor}
	for i := range m.shards {
		s := &m.shards[i]
		for resource, v := range s.marks {
			if v.raisedAt.Before(before) {
				delete(s.marks, resource)
				r.Count++
				r.Floor = max(r.Floor, v.token)
			}
		}
	}
	for i := range m.shards {
		m.shards[i].floor = r.Floor
	}
	m.count.Add(-r.Count)
	return r, nil
}
