package zklock

import (
	"context"
	"errors"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/sequence"
)

// Release deletes the lease's two nodes. One of them is named by the lease ID, so a
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
	path := s.i.idPath(claim.Resource, claim.LeaseID)
	for range sequence.MaxRetries {
		h, err := s.holder(ctx, claim.Resource, 0)
		if err == nil && !h.of(claim) { // or this server is behind
			h, err = s.look(ctx, claim.Resource)
		}
		if err != nil {
			return false, err
		}
		mine, spend := h.of(claim), claim.Token == guard.NoToken
		var ops []any
		if mine {
			ops = s.i.removal(claim)
		}
		if spend {
			ops = append(ops, s.i.create(path, nil, 0), set(path, nil, 0))
		}
		if len(ops) == 0 {
			return false, nil
		}
		responses, refused, err := s.multi(ctx, ops...)
		switch {
		case err == nil:
			if spend {
				s.i.sweepLater(claim.Resource)
			}
			return mine && h.at(responses[0].Stat.Mtime) > 0, nil
		case refused == nil || !raced(err):
			return false, err
		case mine: // it has changed
		case errors.Is(err, zk.ErrNoNode):
			err = s.makeNode(ctx, s.i.container(claim.Resource), nil, zk.FlagContainer)
			if err != nil {
				return false, err
			}
		case s.spent(ctx, claim):
			return false, nil
		}
	}
	return false, sequence.ErrChanged
}

// removal is the operations that end a lease. The first returns the leader's time.
func (i *Issuer) removal(claim guard.Claim) []any {
	lock := i.lockPath(claim.Resource)
	return []any{set(lock, nil, -1), deletion(i.idPath(claim.Resource, claim.LeaseID), 0), deletion(lock, -1)}
}

// spent reports whether nothing is granted under the lease ID any more. The node of a spent
// one was written twice, so that nothing takes it for a lease's. What cannot be seen is
// asked for again.
func (s *session) spent(ctx context.Context, claim guard.Claim) bool {
	id, err := s.get(ctx, s.i.idPath(claim.Resource, claim.LeaseID))
	return err == nil && id != nil && id.stat.Version > 0
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
	ids, _ := s.children(ctx, resource, "id-")
	for _, id := range ids {
		path := s.i.container(resource) + "/" + id
		id, err := s.get(ctx, path)
		if err == nil && id != nil && id.stat.Version > 0 && id.stat.Ctime <= now.Mtime-spentFor.Milliseconds() {
			s.multi(ctx, deletion(path, id.stat.Version))
		}
	}
}
