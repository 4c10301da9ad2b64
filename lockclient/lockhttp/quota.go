package lockhttp

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// quotas are the resources of the tenants that have a limit. The zero value is ready.
type quotas struct {
	mu sync.Mutex
	by map[string]*quota
}

// quota is what is known of the resources that a tenant has leased. The issuer keeps a row
// for each until a purge.
type quota struct {
	mu     sync.Mutex
	names  map[string]struct{}
	listed time.Duration
	ever   bool // it was listed
}

// relistAfter is how long a list counts for a tenant that is at its limit: a purge may have
// freed some.
const relistAfter = time.Second

func (q *quotas) of(id *Identity) *quota {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.by == nil {
		q.by = map[string]*quota{}
	}
	key := cmp.Or(id.Tenant, id.key())
	if q.by[key] == nil {
		q.by[key] = &quota{names: map[string]struct{}{}}
	}
	return q.by[key]
}

// mayLease checks that a tenant leases no more resources than it may. Each server counts those
// that the issuer listed, and what it was asked for since.
func (s *Server) mayLease(ctx context.Context, id *Identity, resource string) error {
	most := id.Limits.Resources
	if most == 0 {
		return nil
	}
	q := s.quotas.of(id)
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, known := q.names[resource]; known {
		return nil
	}
	if !q.ever || len(q.names) >= most && s.now() >= q.listed+relistAfter {
		if err := s.recount(ctx, id, q); err != nil {
			return err
		}
	}
	if _, known := q.names[resource]; !known && len(q.names) >= most {
		return &httpError{kind: &kindTooMany}
	}
	q.names[resource] = struct{}{}
	return nil
}

// recount lists the tenant's resources. An engine that has no list leaves what this server
// knows.
func (s *Server) recount(ctx context.Context, id *Identity, q *quota) error {
	if s.opts.Admin == nil {
		q.ever = true
		return nil
	}
	names, err := within(ctx, s, "count", guard.Claim{}, func(ctx context.Context) (map[string]struct{}, error) {
		names := map[string]struct{}{}
		for _, pattern := range id.patterns("") {
			for lease, err := range s.opts.Admin.List(ctx, pattern, nil) {
				if err != nil {
					return nil, err
				}
				if id.may(lease.Resource) {
					names[lease.Resource] = struct{}{}
				}
			}
		}
		return names, nil
	}, nil)
	switch {
	case errors.Is(err, errors.ErrUnsupported):
	case err != nil:
		return readOnly(err)
	default:
		q.names = names
	}
	q.listed, q.ever = s.now(), true
	return nil
}
