package zklock

import (
	"context"
	"errors"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/sequence"
)

// Release deletes the lease's two nodes. One of them is the grant's own, so a
// successor's nodes stay. Without a token it leaves a node under which no acquire
// of this lease ID succeeds.
func (i *Issuer) Release(ctx context.Context, claim guard.Claim) (freed bool, err error) {
	s, err := i.session(ctx)
	if err == nil {
		freed, err = s.release(ctx, claim)
	}
	return freed, failed("release", claim, err)
}

func (s *session) release(ctx context.Context, claim guard.Claim) (freed bool, err error) {
	id := s.i.create(s.i.idPath(claim.Resource, claim.LeaseID), nil, 0)
	spend := claim.Token == guard.NoToken
	for range sequence.MaxRetries {
		h, err := s.holder(ctx, claim.Resource, 0)
		if err == nil && !h.of(claim) { // or this server is behind
			h, err = s.look(ctx, claim.Resource)
		}
		if err != nil {
			return false, err
		}
		mine := h.of(claim)
		var ops []any
		switch {
		case mine:
			ops = s.i.removal(claim.Resource, h.Grant, h.version)
		case spend: // if its acquire was granted by then, that lease is freed
			ops = s.i.unchanged(claim.Resource, h)
		default:
			return false, nil
		}
		if spend {
			ops = append(ops, id)
		}
		stat, refused, err := s.multi(ctx, ops...)
		creation, _ := refused.(*zk.CreateRequest)
		switch {
		case err == nil:
			if spend {
				s.i.sweepLater(claim.Resource)
			}
			return mine && h.at(stat.Mtime) > 0, nil
		case refused == nil || !raced(err):
			return false, err
		case creation == id && errors.Is(err, zk.ErrNodeExists):
			spend = false // it is spent
		case creation != nil && errors.Is(err, zk.ErrNoNode):
			if err := s.makeNode(ctx, s.i.container(claim.Resource), zk.FlagContainer); err != nil {
				return false, err
			}
		}
	}
	return false, sequence.ErrChanged
}

// removal is the operations that end a lease of that version; -1 is any.
func (i *Issuer) removal(resource, grant string, version int32) []any {
	return []any{deletion(i.grantPath(resource, grant), -1), deletion(i.lockPath(resource), version)}
}

// unchanged is the operations that are refused if anything was granted since h was seen,
// which may be nil.
func (i *Issuer) unchanged(resource string, h *held) []any {
	if h != nil {
		return []any{check(i.grantPath(resource, h.Grant), -1)}
	}
	lock := i.lockPath(resource)
	return []any{i.create(lock, nil, 0), deletion(lock, -1)}
}

// sweepLater deletes the resource's spent lease IDs that are an hour old, once
// the one just spent is. After Close there is no session for it.
func (i *Issuer) sweepLater(resource string) {
	time.AfterFunc(spentFor+time.Minute, func() {
		ctx, cancel := context.WithTimeout(i.ctx, time.Minute)
		defer cancel()
		if s, err := i.session(ctx); err == nil {
			s.sweep(ctx, resource)
		}
	})
}

// sweep deletes the spent lease IDs that are an hour old by the leader's clock. What
// it leaves after an error, a later one deletes.
func (s *session) sweep(ctx context.Context, resource string) {
	now, err := s.now(ctx)
	if err != nil {
		return
	}
	ids, _ := s.children(ctx, s.i.container(resource), "id-")
	for _, id := range ids {
		path := s.i.container(resource) + "/" + id
		id, err := s.get(ctx, path)
		if err == nil && id != nil && id.stat.Ctime <= now.Mtime-spentFor.Milliseconds() {
			s.multi(ctx, deletion(path, -1))
		}
	}
}
