package zklock

import (
	"context"
	"errors"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/sequence"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
)

// base is the number that every token is above, and the node that it is below. Created
// and ctime distinguish one ensemble's data from another's.
type base struct {
	value          int64
	created, ctime int64
}

// Advance raises the tokens of a resource that nobody holds above the given one, and those
// of every other resource with them: it raises the base.
// What it wrote is lost if the data is lost: repeat it after a restore. A token
// that is not below 2^62 is refused (guard.ErrInvalid).
func (i *Issuer) Advance(ctx context.Context, resource string, above guard.Token) (guard.Token, error) {
	s, err := i.session(ctx)
	if err == nil {
		err = s.makeNode(ctx, i.container(resource), zk.FlagContainer)
	}
	if err != nil {
		return guard.NoToken, failed("advance", guard.Claim{Resource: resource}, err)
	}
	var h *held
	var old base
	reached, err := sequence.Advance(above, func() (standing sequence.Standing, err error) {
		if err := i.learnBase(ctx, s); err != nil {
			return standing, err
		}
		now, err := s.now(ctx)
		if err == nil {
			h, err = s.holder(ctx, resource, now.Mtime)
		}
		if err != nil {
			return standing, err
		}
		_, old = i.known()
		return sequence.Standing{Held: h.holds(resource), Base: old.value, Number: now.Mzxid}, nil
	}, func(value int64) (raised bool, err error) {
		ops := i.unchanged(resource, h)
		if h != nil { // it ran out, and a late renewal must not bring it back
			ops = i.removal(resource, h.Grant, h.version)
		}
		return s.setBase(ctx, old.value, value, ops...)
	})
	return reached, failed("advance", guard.Claim{Resource: resource}, err)
}

// RaiseEpoch raises all later tokens above those that the ensemble issued before:
// it sets the base from this process's clock, or above the stored one if that is
// higher. Call it after every restore of a snapshot, and after data was lost while
// workers ran, and restart every process that holds or waits for a lease.
func (i *Issuer) RaiseEpoch(ctx context.Context) (lockadmin.Epoch, error) {
	if err := i.raiseEpoch(ctx); err != nil {
		return lockadmin.Epoch{}, failed("raise epoch", guard.Claim{}, err)
	}
	s, err := i.session(ctx)
	var epoch lockadmin.Epoch
	if err == nil {
		epoch, err = s.epoch(ctx)
	}
	if err != nil { // it is raised, and calling again is harmless
		return epoch, guard.OutcomeUnknown("raise epoch", guard.Claim{}, err)
	}
	return epoch, nil
}

func (i *Issuer) raiseEpoch(ctx context.Context) error {
	s, err := i.session(ctx)
	if err != nil {
		return err
	}
	for range sequence.MaxRetries {
		old, err := s.readBase(ctx)
		if err == nil && old.created == 0 {
			err = s.makeBase(ctx)
		}
		if err != nil {
			return err
		}
		seen, known := i.known() // which may be above what was restored
		raised := old
		raised.value = sequence.Raised(max(old.value, known.value, int64(seen)))
		done, err := s.setBase(ctx, old.value, raised.value)
		if err != nil {
			return err
		}
		if done {
			i.learn(raised)
			return nil
		}
	}
	return sequence.ErrChanged
}

// makeBase sets the first base from the clock, unless there is one.
func (s *session) makeBase(ctx context.Context) error {
	_, refused, err := s.multi(ctx, s.i.create(s.i.basePath(), nil, 0), s.i.create(s.i.valuePath(sequence.First()), nil, 0))
	if refused != nil && errors.Is(err, zk.ErrNodeExists) {
		return nil
	}
	return err
}

// setBase replaces a base, unless it has changed or another operation is refused.
func (s *session) setBase(ctx context.Context, old, value int64, also ...any) (done bool, err error) {
	_, refused, err := s.multi(ctx, append(also, deletion(s.i.valuePath(old), -1), s.i.create(s.i.valuePath(value), nil, 0))...)
	if refused != nil && raced(err) {
		return false, nil
	}
	return err == nil, err
}

// readBase returns the base that is stored; the zero value if there is none.
func (s *session) readBase(ctx context.Context) (base, error) {
	n, err := s.get(ctx, s.i.basePath())
	if err != nil || n == nil {
		return base{}, err
	}
	values, err := s.children(ctx, s.i.basePath(), "")
	if err != nil {
		return base{}, err
	}
	value, err := sequence.Number(s.i.basePath(), []byte(strings.Join(values, ","))) // it is one
	return base{value, n.stat.Czxid, n.stat.Ctime}, err
}

// learnBase reads the base. If the ensemble has none, it is set from the clock,
// unless this issuer has seen one before.
func (i *Issuer) learnBase(ctx context.Context, s *session) error {
	_, before := i.known()
	if _, err := s.now(ctx); err != nil { // so that nothing older than before is read
		return err
	}
	read, err := s.readBase(ctx)
	if err == nil && read.created == 0 && before.created == 0 {
		if err = s.makeBase(ctx); err == nil {
			read, err = s.readBase(ctx)
		}
	}
	switch {
	case err != nil:
		return err
	case read.created == 0, before.created != 0 && (read.created != before.created || read.ctime != before.ctime):
		return sequence.WentBack("the node %q is gone or was recreated, so the data was lost or this is another ensemble", i.basePath())
	case read.value < before.value:
		return sequence.WentBack("the base was %d and is %d, so the ensemble was restored", before.value, read.value)
	}
	i.learn(read)
	return nil
}

// learn replaces the known base, unless that is higher.
func (i *Issuer) learn(read base) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if read.value >= i.base.value {
		i.base = read
	}
}

// known returns the highest token of any grant, which the next is above, and the base. A
// base that was not read yet is 0, of which there is no node: nothing is granted from it.
func (i *Issuer) known() (guard.Token, base) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.seen, i.base
}

// forward records a grant's token and refuses one that went back.
func (i *Issuer) forward(before, token guard.Token) error {
	if token <= before {
		return sequence.WentBack("the token was %v and is %v, so the ensemble was restored", before, token)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.seen = max(i.seen, token)
	return nil
}
