package zklock

import (
	"context"
	"errors"
	"slices"
	"strconv"

	"github.com/go-zookeeper/zk"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/sequence"
)

// stored is a floor and its container's version.
type stored struct {
	value   int64
	version int32
}

// base is the number that every token is above, and the node that it was read
// from. Created and ctime distinguish one ensemble's data from another's.
type base struct {
	stored
	created, ctime int64
}

// Advance raises the tokens of a resource that nobody holds above the given one.
// What it wrote is lost if the data is lost: repeat it after a restore. A token
// that is not below 2^62 is refused (guard.ErrInvalid).
func (i *Issuer) Advance(ctx context.Context, resource string, above guard.Token) (guard.Token, error) {
	if err := sequence.CheckAdvance(above); err != nil {
		return guard.NoToken, err
	}
	reached, err := i.advance(ctx, resource, above)
	return reached, failed("advance", guard.Claim{Resource: resource}, err)
}

func (i *Issuer) advance(ctx context.Context, resource string, above guard.Token) (guard.Token, error) {
	s, err := i.session(ctx, controlTicks*i.opts.TickTime)
	if err != nil {
		return guard.NoToken, err
	}
	if err := s.makeContainer(ctx, resource); err != nil {
		return guard.NoToken, err
	}
	container, lock := i.container(resource), i.lockPath(resource)
	for range sequence.MaxRetries {
		// A write, for the current zxid and so that what is read after it is
		// current.
		responses, _, err := s.multi(ctx, s.touch())
		if err != nil {
			return guard.NoToken, err
		}
		zxid := responses[0].Stat.Mzxid
		h, err := s.holder(ctx, resource)
		if err != nil || h != nil && h.Token < above {
			return guard.NoToken, refused(resource, h, err)
		}
		floor, err := s.floor(ctx, resource)
		if err != nil {
			return guard.NoToken, err
		}
		reached := sequence.Token(max(i.knownBase().value, floor.value), zxid)
		if reached == guard.NoToken { // the tokens are used up
			reached = guard.MaxToken
		}
		if reached >= above || h != nil {
			return max(reached, above), nil
		}
		// The container's version is checked by every acquire, and the node floor
		// keeps the container, which ZooKeeper deletes when it is empty.
		value := strconv.FormatInt(int64(above)-zxid, 10)
		ops := []any{&zk.SetDataRequest{Path: container, Data: []byte(value), Version: floor.version}}
		if floor.version == 0 {
			ops = append(ops, i.create(container+"/floor", nil, zk.FlagPersistent))
		}
		// If its node can be created, nobody has been granted the lease since.
		ops = append(ops, i.create(lock, nil, zk.FlagEphemeral), deletion(lock, -1))
		if _, which, err := s.multi(ctx, ops...); err == nil {
			return above, nil
		} else if !raced(which, err) {
			return guard.NoToken, err
		}
	}
	return guard.NoToken, errChanged
}

// raced reports whether a transaction was refused because a node has changed since it was
// read.
func raced(which int, err error) bool {
	changed := []error{zk.ErrBadVersion, zk.ErrNodeExists, zk.ErrNoNode, zk.ErrNotEmpty}
	return which >= 0 && slices.ContainsFunc(changed, func(target error) bool { return errors.Is(err, target) })
}

// RaiseEpoch raises all later tokens above those that the ensemble issued before:
// it sets the base from this process's clock, or above the stored one if that is
// higher. Call it after every restore of a snapshot, and after data was lost while
// workers ran.
func (i *Issuer) RaiseEpoch(ctx context.Context) error {
	i.mu.Lock()
	i.base, i.seen = base{}, 0 // the step back has been handled
	for _, s := range i.sessions {
		s.before = 0
	}
	i.mu.Unlock()
	return failed("raise epoch", guard.Claim{}, i.raiseEpoch(ctx))
}

func (i *Issuer) raiseEpoch(ctx context.Context) error {
	s, err := i.session(ctx, controlTicks*i.opts.TickTime)
	if err != nil {
		return err
	}
	for range sequence.MaxRetries {
		if err := i.learnBase(ctx, s); err != nil {
			return err
		}
		old := i.knownBase()
		value := strconv.FormatInt(sequence.Raised(old.value), 10)
		_, which, err := s.multi(ctx, &zk.SetDataRequest{Path: i.basePath(), Data: []byte(value), Version: old.version})
		if err == nil {
			return i.learnBase(ctx, s)
		}
		if !raced(which, err) {
			return err
		}
	}
	return errChanged
}

func (i *Issuer) knownBase() base {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.base
}

// learnBase reads the base. If the ensemble has none, it is set from the clock,
// unless this issuer has seen one before.
func (i *Issuer) learnBase(ctx context.Context, s *session) error {
	if err := s.catchUp(ctx); err != nil {
		return err
	}
	n, err := s.get(ctx, i.basePath())
	if err == nil && n == nil && i.knownBase().created == 0 {
		if err := s.makeNode(ctx, i.opts.Root, nil); err != nil {
			return err
		}
		if err := s.makeNode(ctx, i.basePath(), []byte(strconv.FormatInt(sequence.First(), 10))); err != nil {
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
		read = base{stored{value, n.stat.Version}, n.stat.Czxid, n.stat.Ctime}
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

// floor reads a container.
func (s *session) floor(ctx context.Context, resource string) (stored, error) {
	path := s.i.container(resource)
	n, err := s.get(ctx, path)
	if err != nil || n == nil {
		return stored{}, err
	}
	if n.stat.Version == 0 && len(n.value) == 0 {
		return stored{}, nil
	}
	value, err := sequence.Number(path, n.value)
	return stored{value: value, version: n.stat.Version}, err
}
