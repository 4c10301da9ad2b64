package memory

import (
	"maps"
	"slices"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/bridge"
)

// Rows returns what there is of every resource.
func (s *Server) Rows() []bridge.Row {
	s.mu.Lock()
	defer s.mu.Unlock()
	rows := make([]bridge.Row, 0, len(s.rows))
	for _, resource := range slices.Sorted(maps.Keys(s.rows)) {
		if s.rows[resource].token != guard.NoToken {
			rows = append(rows, s.describe(resource))
		}
	}
	return rows
}

func (s *Server) describe(resource string) bridge.Row {
	l, now := s.rows[resource], s.now()
	r := bridge.Row{
		Resource: resource, LeaseID: l.leaseID, Owner: l.owner, Token: l.token,
		AcquiredAt: l.acquired, ExpiresAt: l.expires, State: "free",
	}
	switch {
	case l.leaseID == "":
	case l.expires.After(now):
		r.State, r.HeldFor, r.Remaining = "held", now.Sub(l.acquired), l.expires.Sub(now)
	default:
		r.State = "expired"
	}
	for e := range s.ears {
		r.Awaited = r.Awaited || e.resource == resource
	}
	return r
}

// ForceUnlock burns a token, frees the lease and keeps the record.
func (s *Server) ForceUnlock(u bridge.Unlock) (record bridge.Record, verdict string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, old := range s.audit {
		if old.RequestID == u.RequestID {
			if old.Resource != u.Resource {
				return old, "foreign"
			}
			return old, "repeated"
		}
	}
	l := s.rows[u.Resource]
	if l == nil || l.token == guard.NoToken {
		return record, "not found"
	}
	record = bridge.Record{ID: int64(len(s.audit) + 1), At: s.now(), Unlock: u, Cut: s.describe(u.Resource)}
	if u.Expected != "" && u.Expected != l.leaseID {
		return record, "changed"
	}
	l.token++
	l.leaseID = ""
	if l.expires.After(record.At) {
		l.expires = record.At
	}
	record.Token = l.token
	s.audit = append(s.audit, record)
	for _, ring := range s.listeners(u.Resource, true) {
		defer ring() // before the lock is freed, which ring does not need
	}
	return record, "cut"
}

// Records returns the records, the oldest first.
func (s *Server) Records() []bridge.Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.audit)
}
