package zklock

import (
	"context"
	"errors"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

// lease is a lease that a session has. One under a claim without a token is a
// request whose outcome is unknown, and is deleted like one that runs out: a
// session that lives on would keep a lease that nobody holds.
type lease struct {
	expires time.Duration
	ending  bool // it ran out and is being deleted
}

// has reports whether the session has a lease that has not run out.
func (s *session) has(claim guard.Claim) bool {
	s.i.mu.Lock()
	defer s.i.mu.Unlock()
	l := s.leases[claim]
	return l != nil && !l.ending
}

// keep records that the session has a lease, and returns the time from which its TTL
// counts. It is errEnding if the lease ID is being deleted.
func (s *session) keep(claim guard.Claim) (from time.Duration, err error) {
	s.i.mu.Lock()
	defer s.i.mu.Unlock()
	unknown := guard.Claim{Resource: claim.Resource, LeaseID: claim.LeaseID}
	for _, c := range []guard.Claim{claim, unknown} {
		if l := s.leases[c]; l != nil && l.ending {
			return 0, errEnding
		}
	}
	s.leases[claim] = &lease{expires: s.safe + s.timeout}
	delete(s.leases, unknown) // it is known now
	return s.safe, nil
}

// doubt records that a request that failed may have given this session a lease. Perhaps
// nobody asks for it again.
func (s *session) doubt(claim guard.Claim, err error) {
	if !errors.Is(failed("", claim, err), guard.ErrOutcomeUnknown) {
		return
	}
	claim.Token = guard.NoToken
	s.i.mu.Lock()
	defer s.i.mu.Unlock()
	if l := s.leases[claim]; l == nil || !l.ending {
		s.leases[claim] = &lease{expires: driver.Now() + s.timeout}
	}
}

// postpone keeps the session from deleting what it has under a lease ID until a
// TTL after ctx, for a request that may take it. It is errEnding if the deletion has
// begun.
func (s *session) postpone(ctx context.Context, claim guard.Claim) error {
	until := driver.Now() + s.timeout
	if end, ok := ctx.Deadline(); ok {
		until += time.Until(end)
	}
	s.i.mu.Lock()
	defer s.i.mu.Unlock()
	for c, l := range s.leases {
		if c.Resource == claim.Resource && c.LeaseID == claim.LeaseID {
			if l.ending {
				return errEnding
			}
			l.expires = max(l.expires, until)
		}
	}
	return nil
}

func (s *session) forget(claim guard.Claim) {
	s.i.mu.Lock()
	defer s.i.mu.Unlock()
	delete(s.leases, claim)
}

// due marks and returns the leases that have run out. next is when
// the next one does, in a tick at most; idle says that nobody needs the session.
func (s *session) due() (ended []guard.Claim, next time.Duration, idle bool) {
	s.i.mu.Lock()
	defer s.i.mu.Unlock()
	now := driver.Now()
	next = now + s.i.opts.TickTime
	for claim, l := range s.leases {
		if l.expires > now {
			next = min(next, l.expires)
			continue
		}
		l.ending = true
		ended = append(ended, claim)
	}
	idle = len(s.leases) == 0 && len(s.watched) == 0 && now-s.used > idleFor
	if idle && s.i.sessions[s.timeout] == s {
		delete(s.i.sessions, s.timeout) // before anybody gets it
	}
	return ended, next, idle
}
