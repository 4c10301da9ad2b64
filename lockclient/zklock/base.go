package zklock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencepost-go/fencepost/guard"
)

// base is the number that every token is above, and the node that it was read
// from. Created and ctime distinguish one ensemble's data from another's.
type base struct {
	value          int64
	version        int32
	created, ctime int64
}

// stored is a floor and its container's version.
type stored struct {
	value   int64
	version int32
}

// maxAdvance leaves room for the zxids to come, and for epochs.
const maxAdvance guard.Token = 1<<62 - 1

// lostAtMost is more than a restore can set a zxid back: 64 elections.
const lostAtMost = 1 << 38

// Advance raises the tokens of a resource that nobody holds above the given one.
// What it wrote is lost if the data is lost: repeat it after a restore. A token
// that is not below 2^62 is refused (guard.ErrInvalid).
func (i *Issuer) Advance(ctx context.Context, resource string, above guard.Token) (guard.Token, error) {
	claim := guard.Claim{Resource: resource}
	if err := above.Validate(); err != nil {
		return guard.NoToken, err
	}
	if above > maxAdvance {
		return guard.NoToken, guard.Invalid("token", above.String(), "must be at most "+maxAdvance.String())
	}
	s, err := i.session(ctx, controlTicks*i.opts.TickTime)
	if err != nil {
		return guard.NoToken, unsent("advance", claim, err)
	}
	if err := s.makeContainer(ctx, resource); err != nil {
		return guard.NoToken, unsent("advance", claim, err)
	}
	for range maxRetries {
		// A write, for the current zxid and so that what is read after it is
		// current.
		answers, _, err := s.multi(ctx, s.touch())
		if err != nil {
			return guard.NoToken, failed("advance", claim, err)
		}
		zxid := answers[0].Stat.Mzxid
		h, err := s.holder(ctx, resource)
		if err != nil {
			return guard.NoToken, unavailable("advance", claim, err)
		}
		if h != nil && h.Token < above {
			return guard.NoToken, heldBy(resource, h)
		}
		floor, err := s.floor(ctx, resource)
		if err != nil {
			return guard.NoToken, unavailable("advance", claim, err)
		}
		reached := guard.MaxToken // if the tokens are used up
		if last := max(i.knownBase().value, floor.value); last < int64(guard.MaxToken)-zxid {
			reached = guard.Token(last + zxid)
		}
		if reached >= above || h != nil {
			return max(reached, above), nil
		}
		// The container's version is checked by every acquire, and the node floor
		// keeps the container, which ZooKeeper deletes when it is empty.
		ops := []any{&zk.SetDataRequest{Path: i.container(resource), Data: []byte(strconv.FormatInt(int64(above)-zxid, 10)), Version: floor.version}}
		if floor.version == 0 {
			ops = append(ops, i.create(i.container(resource)+"/floor", nil, zk.FlagPersistent))
		}
		// If its node can be created, nobody has been granted the lease since.
		ops = append(ops, i.create(i.lockPath(resource), nil, zk.FlagEphemeral), &zk.DeleteRequest{Path: i.lockPath(resource), Version: -1})
		_, which, err := s.multi(ctx, ops...)
		switch {
		case err == nil:
			return above, nil
		case which < 0:
			return guard.NoToken, failed("advance", claim, err)
		case errors.Is(err, zk.ErrBadVersion), errors.Is(err, zk.ErrNodeExists), errors.Is(err, zk.ErrNoNode):
		default:
			return guard.NoToken, unavailable("advance", claim, err)
		}
	}
	return guard.NoToken, guard.Unavailable("advance", claim, errors.New("the lease or the floor kept changing"))
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
	s, err := i.session(ctx, controlTicks*i.opts.TickTime)
	if err != nil {
		return unsent("raise epoch", guard.Claim{}, err)
	}
	for range maxRetries {
		if err := i.learnBase(ctx, s); err != nil {
			return unsent("raise epoch", guard.Claim{}, err)
		}
		old := i.knownBase()
		value := strconv.FormatInt(max(old.value+lostAtMost, time.Now().UnixMilli()<<20), 10)
		_, which, err := s.multi(ctx, &zk.SetDataRequest{Path: i.basePath(), Data: []byte(value), Version: old.version})
		switch {
		case err == nil:
			return unsentOrNil("raise epoch", i.learnBase(ctx, s))
		case which < 0 || !errors.Is(err, zk.ErrBadVersion):
			return failed("raise epoch", guard.Claim{}, err)
		}
	}
	return guard.Unavailable("raise epoch", guard.Claim{}, errors.New("the base kept changing"))
}

func unsentOrNil(op string, err error) error {
	if err == nil {
		return nil
	}
	return unsent(op, guard.Claim{}, err)
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
	for range maxRetries {
		n, err := s.get(ctx, i.basePath())
		if err != nil {
			return err
		}
		known := i.knownBase()
		if n == nil && known.created != 0 {
			return fmt.Errorf("fencepost: %w: the node %q is gone, so the data was lost or this is another ensemble; call RaiseEpoch, then restart the workers",
				guard.ErrMarkAhead, i.basePath())
		}
		if n == nil {
			if err := s.makeRoot(ctx); err != nil {
				return err
			}
			_, err := call(ctx, s, func(c *zk.Conn) (string, error) {
				return c.Create(i.basePath(), []byte(strconv.FormatInt(time.Now().UnixMilli()<<20, 10)), zk.FlagPersistent, i.opts.ACL)
			})
			if err != nil && !errors.Is(err, zk.ErrNodeExists) {
				return err
			}
			continue
		}
		value, err := number(i.basePath(), n.value)
		if err != nil {
			return err
		}
		read := base{value: value, version: n.stat.Version, created: n.stat.Czxid, ctime: n.stat.Ctime}
		if known.created != 0 && (known.created != read.created || known.ctime != read.ctime) {
			return fmt.Errorf("fencepost: %w: the node %q was recreated, so the data was lost or this is another ensemble; call RaiseEpoch, then restart the workers",
				guard.ErrMarkAhead, i.basePath())
		}
		i.mu.Lock()
		if i.base.created == 0 || read.version > i.base.version {
			i.base = read
		}
		i.mu.Unlock()
		return nil
	}
	return errors.New("the base kept changing")
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
	value, err := number(path, n.value)
	return stored{value: value, version: n.stat.Version}, err
}

func number(path string, value []byte) (int64, error) {
	n, err := strconv.ParseInt(string(value), 10, 64)
	if err != nil || n < 0 {
		return 0, foreign{path, string(value)}
	}
	return n, nil
}

// checkMembers counts the voting servers of the ensemble.
func (s *session) checkMembers(ctx context.Context) error {
	want := s.i.opts.Members
	if want == 0 {
		return nil
	}
	n, err := s.get(ctx, "/zookeeper/config")
	if err != nil {
		return fmt.Errorf("the ensemble's members cannot be read: %w", err)
	}
	members := 0
	if n != nil {
		for line := range strings.Lines(string(n.value)) {
			if strings.HasPrefix(line, "server.") && !strings.Contains(line, ":observer") {
				members++
			}
		}
	}
	if members < want {
		return fmt.Errorf("the ensemble has %d voting members, Options.Members requires %d (a standalone server has none)", members, want)
	}
	return nil
}
