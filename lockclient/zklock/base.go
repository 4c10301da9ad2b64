package zklock

import (
	"context"
	"strconv"

	"github.com/go-zookeeper/zk"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/sequence"
)

// base is the number that every token is above, and the node that it was read
// from. Created and ctime distinguish one ensemble's data from another's.
type base struct {
	value          int64
	version        int32
	created, ctime int64
}

// Advance raises the tokens of a resource that nobody holds above the given one, and those
// of every other resource with them: it raises the base.
// What it wrote is lost if the data is lost: repeat it after a restore. A token
// that is not below 2^62 is refused (guard.ErrInvalid).
func (i *Issuer) Advance(ctx context.Context, resource string, above guard.Token) (guard.Token, error) {
	s, err := i.session(ctx)
	lock := i.lockPath(resource)
	if err == nil {
		err = s.makeNode(ctx, i.container(resource), nil, zk.FlagContainer)
	}
	if err != nil {
		return guard.NoToken, failed("advance", guard.Claim{Resource: resource}, err)
	}
	var h *held
	var old base
	reached, err := sequence.Advance(above, func() (sequence.Standing, error) {
		now, err := s.now(ctx)
		if err == nil {
			h, err = s.holder(ctx, resource, now.Mtime)
		}
		if err == nil {
			err = i.learnBase(ctx, s)
		}
		if err != nil {
			return sequence.Standing{}, err
		}
		_, old = i.known()
		return sequence.Standing{Held: h.holds(resource), Base: old.value, Number: now.Mzxid}, nil
	}, func(value int64) (raised bool, err error) {
		// Nobody has been granted the lease since.
		unchanged := []any{i.create(lock, nil, 0), deletion(lock, -1)}
		if h != nil {
			unchanged = []any{check(i.idPath(resource, h.ID), 0), check(lock, h.version)}
		}
		return s.setBase(ctx, old, value, unchanged...)
	})
	return reached, failed("advance", guard.Claim{Resource: resource}, err)
}

// RaiseEpoch raises all later tokens above those that the ensemble issued before:
// it sets the base from this process's clock, or above the stored one if that is
// higher. Call it after every restore of a snapshot, and after data was lost while
// workers ran.
func (i *Issuer) RaiseEpoch(ctx context.Context) error {
	i.mu.Lock()
	i.base, i.seen = base{}, 0 // the step back has been handled
	i.mu.Unlock()
	return failed("raise epoch", guard.Claim{}, i.raiseEpoch(ctx))
}

func (i *Issuer) raiseEpoch(ctx context.Context) error {
	s, err := i.session(ctx)
	if err != nil {
		return err
	}
	for range sequence.MaxRetries {
		if err := i.learnBase(ctx, s); err != nil {
			return err
		}
		_, old := i.known()
		done, err := s.setBase(ctx, old, sequence.Raised(old.value))
		if err != nil {
			return err
		}
		if done {
			return i.learnBase(ctx, s)
		}
	}
	return sequence.ErrChanged
}

// setBase replaces a base, unless it has changed or another operation is refused.
func (s *session) setBase(ctx context.Context, old base, value int64, also ...any) (done bool, err error) {
	_, refused, err := s.multi(ctx, append(also, set(s.i.basePath(), strconv.AppendInt(nil, value, 10), old.version))...)
	if refused != nil && raced(err) {
		return false, nil
	}
	return err == nil, err
}

// known returns the highest zxid of any grant, which the next is above, and the base.
func (i *Issuer) known() (int64, base) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.seen, i.base
}

// forward records a grant's zxid and refuses one that went back.
func (i *Issuer) forward(before, zxid int64) error {
	if zxid <= before {
		return sequence.WentBack("the zxid was %#x and is %#x, so the ensemble was restored", before, zxid)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.seen = max(i.seen, zxid)
	return nil
}

// learnBase reads the base. If the ensemble has none, it is set from the clock,
// unless this issuer has seen one before.
func (i *Issuer) learnBase(ctx context.Context, s *session) error {
	n, err := s.get(ctx, i.basePath())
	if _, known := i.known(); err == nil && n == nil && known.created == 0 {
		if err := s.makeNode(ctx, i.basePath(), strconv.AppendInt(nil, sequence.First(), 10), zk.FlagPersistent); err != nil {
			return err
		}
		n, err = s.get(ctx, i.basePath())
	}
	if err != nil {
		return err
	}
	var read base
	if n != nil {
		value, err := sequence.Number(i.basePath(), n.value)
		if err != nil {
			return err
		}
		read = base{value, n.stat.Version, n.stat.Czxid, n.stat.Ctime}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if n == nil || i.base.created != 0 && (i.base.created != read.created || i.base.ctime != read.ctime) {
		return sequence.WentBack("the node %q is gone or was recreated, so the data was lost or this is another ensemble", i.basePath())
	}
	if i.base.created == 0 || read.version > i.base.version {
		i.base = read
	}
	return nil
}
