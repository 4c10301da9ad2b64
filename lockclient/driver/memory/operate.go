package memory

import (
	"context"
	"maps"
	"slices"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

// List returns what there is of the resources in a range.
func (i *Issuer) List(_ context.Context, low, high, after string, limit int) ([]driver.Info, error) {
	s := i.s
	s.mu.Lock()
	defer s.mu.Unlock()
	rows := []driver.Info{}
	for _, resource := range slices.Sorted(maps.Keys(s.rows)) {
		if len(rows) < limit && within(resource, low, high) && resource > after && s.rows[resource].token != guard.NoToken {
			rows = append(rows, s.describe(resource))
		}
	}
	return rows, nil
}

func within(resource, low, high string) bool {
	return resource >= low && (high == "" || resource < high)
}

func (s *Server) describe(resource string) driver.Info {
	l, now := s.rows[resource], s.now()
	r := driver.Info{
		Resource: resource, LeaseID: l.leaseID, Owner: l.owner, Metadata: l.metadata, Token: l.token,
		AcquiredAt: l.acquired, ExpiresAt: l.expires, State: driver.Free,
	}
	switch {
	case l.leaseID == "":
	case l.expires.After(now):
		r.State, r.HeldFor, r.Remaining = driver.Held, now.Sub(l.acquired), l.expires.Sub(now)
	default:
		r.State = driver.Expired
	}
	for w := range s.watches {
		r.Awaited = r.Awaited || w.waiter && w.resource == resource
	}
	return r
}

// ForceUnlock burns a token, frees the lease and keeps the record.
func (i *Issuer) ForceUnlock(_ context.Context, u driver.Unlock) (driver.Unlocked, error) {
	s := i.s
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, old := range s.audit {
		switch {
		case old.RequestID != u.RequestID:
		case old.Resource != u.Resource:
			return driver.Unlocked{Outcome: driver.Foreign, Record: old}, nil
		default:
			return driver.Unlocked{Outcome: driver.Repeated, Record: old}, nil
		}
	}
	l := s.rows[u.Resource]
	if l == nil || l.token == guard.NoToken {
		return driver.Unlocked{Outcome: driver.NotFound}, nil
	}
	record := driver.Record{ID: int64(len(s.audit) + 1), At: s.now(), Unlock: u, Cut: s.describe(u.Resource)}
	if u.Expected != "" && u.Expected != l.leaseID {
		return driver.Unlocked{Outcome: driver.Changed, Record: record}, nil
	}
	l.token++
	record.Token = l.token
	s.audit = append(s.audit, record)
	s.free(u.Resource, l, record.At)
	return driver.Unlocked{Outcome: driver.Cut, Record: record}, nil
}

// Audit returns the records, the latest first.
func (i *Issuer) Audit(_ context.Context, low, high string, before int64, limit int) ([]driver.Record, error) {
	s := i.s
	s.mu.Lock()
	defer s.mu.Unlock()
	records := []driver.Record{}
	for _, r := range slices.Backward(s.audit) {
		if len(records) < limit && within(r.Resource, low, high) && (before == 0 || r.ID < before) {
			records = append(records, r)
		}
	}
	return records, nil
}

// Why says who force-unlocked a lease.
func (i *Issuer) Why(_ context.Context, claim guard.Claim) error {
	s := i.s
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.audit {
		if r.Resource == claim.Resource && r.Cut.LeaseID == claim.LeaseID && r.Cut.Token == claim.Token && r.Cut.State == driver.Held {
			return &driver.ForceUnlockedError{Actor: r.Actor, Reason: r.Reason, At: r.At}
		}
	}
	return nil
}
