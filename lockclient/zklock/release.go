package zklock

import (
	"context"
	"errors"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/sequence"
)

// Release deletes the lease's two nodes. One of them is named by the lease ID,
// so a successor's nodes stay. Without a token it leaves a node that invalidates the
// ID.
func (i *Issuer) Release(ctx context.Context, claim guard.Claim) (freed bool, err error) {
	s, err := i.holding(ctx, claim)
	switch {
	case err != nil:
	case claim.Token == guard.NoToken:
		freed, err = s.invalidate(ctx, claim)
	default:
		freed, err = s.release(ctx, claim)
	}
	return freed, failed("release", claim, err)
}

// holding returns the session that has the lease, or else the one for waiting:
// any session can delete any node.
func (i *Issuer) holding(ctx context.Context, claim guard.Claim) (*session, error) {
	i.mu.Lock()
	for _, s := range i.sessions {
		if s.leases[claim] != nil {
			i.mu.Unlock()
			return s, nil
		}
	}
	i.mu.Unlock()
	return i.session(ctx, controlTicks*i.opts.TickTime)
}

func (s *session) release(ctx context.Context, claim guard.Claim) (freed bool, err error) {
	if !s.has(claim) {
		h, err := s.current(ctx, claim.Resource)
		if err != nil || h == nil || !h.of(claim) {
			return false, err
		}
	}
	return s.remove(ctx, claim, -1)
}

// invalidate leaves a node under which no acquire of this lease ID succeeds, and frees
// its lease.
func (s *session) invalidate(ctx context.Context, claim guard.Claim) (freed bool, err error) {
	i, path := s.i, s.i.idPath(claim.Resource, claim.LeaseID)
	for range sequence.MaxRetries {
		id, err := s.stat(ctx, path)
		if err != nil || id != nil && id.EphemeralOwner == 0 {
			return false, err
		}
		// The child prevents remove from deleting the mark as if it were a
		// running lease, and with it a successor's lock.
		ops := []any{i.create(path, nil, zk.FlagPersistent), i.create(path+"/spent", nil, zk.FlagPersistent)}
		if id != nil {
			ops = append([]any{deletion(path, id.Version), deletion(i.lockPath(claim.Resource), -1)}, ops...)
		}
		_, which, err := s.multi(ctx, ops...)
		switch {
		case err == nil:
			i.sweepLater(claim.Resource)
			return id != nil, nil
		case !raced(which, err):
			return false, err
		case id == nil && errors.Is(err, zk.ErrNoNode):
			if err := s.makeContainer(ctx, claim.Resource); err != nil {
				return false, err
			}
		}
	}
	return false, errChanged
}

// sweepLater deletes the resource's spent lease IDs that are an hour old, once
// the one just spent is.
func (i *Issuer) sweepLater(resource string) {
	due, done := context.WithTimeout(i.ctx, spentFor+time.Minute)
	context.AfterFunc(due, func() { // or at Close, when there is no session any more
		done()
		ctx, cancel := context.WithTimeout(i.ctx, time.Minute)
		defer cancel()
		if s, err := i.session(ctx, controlTicks*i.opts.TickTime); err == nil {
			s.sweep(ctx, resource)
		}
	})
}

// sweep deletes the spent lease IDs that are an hour old by the servers' clock. What
// it leaves after an error, a later one deletes.
func (s *session) sweep(ctx context.Context, resource string) {
	responses, _, err := s.multi(ctx, s.touch())
	if err != nil {
		return
	}
	old := responses[0].Stat.Mtime - spentFor.Milliseconds()
	ids, _ := s.children(ctx, resource, "id-")
	for _, id := range ids {
		path := s.i.container(resource) + "/" + id
		stat, err := s.stat(ctx, path)
		if err == nil && stat != nil && stat.EphemeralOwner == 0 && stat.Ctime <= old {
			s.multi(ctx, deletion(path+"/spent", -1), deletion(path, stat.Version))
		}
	}
}

// expire deletes a lease that ran out, or that a request may have left, if this session
// has it: the lease ID may have been granted to another session since.
func (s *session) expire(ctx context.Context, claim guard.Claim) {
	h, err := s.current(ctx, claim.Resource)
	switch {
	case err != nil: // at the next tick
	case h != nil && h.session == s.id && h.of(claim):
		s.remove(ctx, claim, h.version)
	default:
		s.forget(claim)
	}
}

// remove deletes a lease's nodes; freed is false if they no longer exist, or the lock is
// of another version than this one. -1 matches any.
func (s *session) remove(ctx context.Context, claim guard.Claim, version int32) (freed bool, err error) {
	_, which, err := s.multi(ctx,
		deletion(s.i.idPath(claim.Resource, claim.LeaseID), -1),
		deletion(s.i.lockPath(claim.Resource), version))
	if err == nil || raced(which, err) {
		s.forget(claim)
		return err == nil, nil
	}
	return false, err
}
