package zklock

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencepost-go/fencepost/guard"
)

// Release deletes the lease's two nodes. One of them is named by the lease ID,
// so a successor's nodes stay. Without a token it leaves a node that invalidates the
// ID.
func (i *Issuer) Release(ctx context.Context, claim guard.Claim) (freed bool, err error) {
	s, err := i.holding(ctx, claim)
	if err != nil {
		return false, unsent("release", claim, err)
	}
	if claim.Token == guard.NoToken {
		return s.invalidate(ctx, claim)
	}
	if known, _ := s.knows(claim); !known {
		h, err := s.current(ctx, claim.Resource)
		if err != nil {
			return false, unavailable("release", claim, err)
		}
		if h == nil || h.ID != claim.LeaseID || h.Token != claim.Token {
			return false, nil
		}
	}
	freed, err = s.remove(ctx, claim, -1)
	if err != nil {
		return false, failed("release", claim, err)
	}
	return freed, nil
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

// invalidate leaves a node under which no acquire of this lease ID succeeds, and frees
// its lease.
func (s *session) invalidate(ctx context.Context, claim guard.Claim) (freed bool, err error) {
	i, path := s.i, s.i.idPath(claim.Resource, claim.LeaseID)
	for range maxRetries {
		id, err := s.stat(ctx, path)
		switch {
		case err != nil:
			return false, unavailable("release", claim, err)
		case id != nil && id.EphemeralOwner == 0:
			return false, nil
		}
		// The child prevents remove from deleting the mark as if it were a
		// running lease, and with it a successor's lock.
		ops := []any{i.create(path, nil, zk.FlagPersistent), i.create(path+"/spent", nil, zk.FlagPersistent)}
		if id != nil {
			ops = append([]any{&zk.DeleteRequest{Path: path, Version: id.Version}, &zk.DeleteRequest{Path: i.lockPath(claim.Resource), Version: -1}}, ops...)
		}
		_, which, err := s.multi(ctx, ops...)
		switch {
		case err == nil:
			i.sweepLater(claim.Resource)
			return id != nil, nil
		case which < 0:
			return false, failed("release", claim, err)
		case id == nil && errors.Is(err, zk.ErrNoNode):
			if err := s.makeContainer(ctx, claim.Resource); err != nil {
				return false, unsent("release", claim, err)
			}
		case errors.Is(err, zk.ErrNoNode), errors.Is(err, zk.ErrNodeExists), errors.Is(err, zk.ErrBadVersion): // it has changed since
		default:
			return false, unavailable("release", claim, err)
		}
	}
	return false, guard.Unavailable("release", claim, errors.New("the lease kept changing"))
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
			s.sweep(ctx, resource, spentFor)
		}
	})
}

// sweep deletes spent lease IDs of at least this age, by the servers' clock.
func (s *session) sweep(ctx context.Context, resource string, age time.Duration) {
	now, err := s.time(ctx)
	if err != nil {
		return
	}
	children, err := s.children(ctx, resource)
	if err != nil {
		return
	}
	for _, child := range children {
		path := s.i.container(resource) + "/" + child
		if !strings.HasPrefix(child, "id-") {
			continue
		}
		if stat, err := s.stat(ctx, path); err == nil && stat != nil && stat.EphemeralOwner == 0 && stat.Ctime <= now-age.Milliseconds() {
			call(ctx, s, func(c *zk.Conn) (struct{}, error) {
				if err := c.Delete(path+"/spent", -1); err != nil {
					return struct{}{}, err
				}
				return struct{}{}, c.Delete(path, stat.Version)
			})
		}
	}
}

// remove deletes a lease's nodes; freed is false if they no longer exist.
// version -1 matches any.
func (s *session) remove(ctx context.Context, claim guard.Claim, version int32) (freed bool, err error) {
	_, which, err := s.multi(ctx,
		&zk.DeleteRequest{Path: s.i.idPath(claim.Resource, claim.LeaseID), Version: version},
		&zk.DeleteRequest{Path: s.i.lockPath(claim.Resource), Version: -1})
	switch {
	case err == nil:
		s.forget(claim)
		return true, nil
	case which >= 0 && (errors.Is(err, zk.ErrNoNode) || errors.Is(err, zk.ErrBadVersion) || errors.Is(err, zk.ErrNotEmpty)):
		s.forget(claim)
		return false, nil
	}
	return false, err
}
