package zklock

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

// place is this process's place in a resource's line.
type place struct {
	s       *session
	node    string // its name
	watches int
	left    *time.Timer // gives it up; nil while it is watched
}

// watched is a node that a watch of this session is set on.
type watched struct {
	changed chan struct{} // closed when it has, or that is not known
}

// Watch returns who has the lease. A waiter has a place in the queue by a node of its
// own and watches the one before it, so that a release wakes only the first. For an
// watcher of a lease that nobody has, the issuer asks once a tick.
func (i *Issuer) Watch(ctx context.Context, w driver.Watch, wake func()) (driver.Watching, error) {
	claim := guard.Claim{Resource: w.Resource, LeaseID: w.LeaseID}
	s, err := i.session(ctx, controlTicks*i.opts.TickTime)
	if err != nil {
		return driver.Watching{}, unsent("watch", claim, err)
	}
	var p *place
	if w.LeaseID != "" {
		if p, err = i.line(ctx, s, w.Resource); err != nil {
			return driver.Watching{}, unsent("watch", claim, err)
		}
	}
	var changed <-chan struct{}
	if err = s.catchUp(ctx); err == nil && p == nil {
		_, changed, err = s.watch(ctx, i.lockPath(w.Resource))
	}
	var h *held
	if err == nil {
		h, err = s.holder(ctx, w.Resource)
	}
	if err != nil {
		i.unwatch(w.Resource, p)
		return driver.Watching{}, unsent("watch", claim, err)
	}
	watching, cancel := context.WithCancel(i.ctx)
	stop := context.AfterFunc(watching, func() { i.unwatch(w.Resource, p) })
	go func() {
		defer cancel()
		if p == nil && changed == nil {
			s.appears(watching, i.lockPath(w.Resource), i.opts.TickTime)
		} else if p == nil {
			wait(watching, changed)
		} else if s.turn(watching, w.Resource, p.node) && stop() {
			i.leave(w.Resource, p)
		}
		if watching.Err() == nil {
			wake()
		}
	}()
	out := driver.Watching{Stop: func() {
		if stop() {
			i.unwatch(w.Resource, p)
		}
		cancel()
	}}
	if h != nil && h.ID != w.LeaseID {
		out.Held = heldBy(w.Resource, h)
	}
	return out, nil
}

func wait(ctx context.Context, c <-chan struct{}) bool {
	select {
	case <-ctx.Done():
		return false
	case <-c:
		return true
	}
}

// line takes this process's place in the queue, or keeps it.
func (i *Issuer) line(ctx context.Context, s *session, resource string) (*place, error) {
	i.mu.Lock()
	if p := i.places[resource]; p != nil && p.s == s {
		if p.left != nil {
			p.left.Stop()
			p.left = nil
		}
		p.watches++
		i.mu.Unlock()
		return p, nil
	}
	i.mu.Unlock()
	if err := s.makeContainer(ctx, resource); err != nil {
		return nil, err
	}
	path, err := call(ctx, s, func(c *zk.Conn) (string, error) {
		return c.Create(i.container(resource)+"/wait-", nil, zk.FlagEphemeralSequential, i.opts.ACL)
	})
	if err != nil {
		return nil, err
	}
	p := &place{s: s, node: path[strings.LastIndexByte(path, '/')+1:], watches: 1}
	i.mu.Lock()
	other := i.places[resource]
	if other == nil || other.s != s {
		i.places[resource] = p
		s.lineLength++
	}
	i.mu.Unlock()
	if other != nil && other.s == s { // another waiter of this process was faster
		go s.drop(resource, p.node)
		return i.line(ctx, s, resource)
	}
	return p, nil
}

// unwatch keeps, for a moment, the place of a waiter that asks or has abandoned its acquire.
func (i *Issuer) unwatch(resource string, p *place) {
	if p == nil {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	p.watches--
	if p.watches == 0 && i.places[resource] == p {
		p.left = time.AfterFunc(placeFor, func() { i.leave(resource, p) })
	}
}

// leave gives up the place in the queue, so that the next is the first.
func (i *Issuer) leave(resource string, p *place) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.leaveLocked(resource, p)
}

func (i *Issuer) leaveLocked(resource string, p *place) {
	if i.places[resource] == p {
		delete(i.places, resource)
		p.s.lineLength--
		go p.s.drop(resource, p.node)
	}
}

// leaveUnwatched gives up the place of a waiter that was granted the lease before
// its turn came, unless another one watches. Those behind it would wait for it
// until the place runs out.
func (i *Issuer) leaveUnwatched(resource string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if p := i.places[resource]; p != nil && p.watches == 0 {
		i.leaveLocked(resource, p)
	}
}

// drop deletes a place. If that fails, it ends with the session.
func (s *session) drop(resource, node string) {
	ctx, cancel := context.WithTimeout(s.i.ctx, s.timeout)
	defer cancel()
	call(ctx, s, func(c *zk.Conn) (struct{}, error) {
		return struct{}{}, c.Delete(s.i.container(resource)+"/"+node, -1)
	})
}

// turn returns when it is this place's turn: it is the first in the queue and nobody
// has the lease; or when that is not known. It returns false when ctx ends.
func (s *session) turn(ctx context.Context, resource, mine string) bool {
	for {
		all, err := s.children(ctx, resource)
		if err != nil {
			return ctx.Err() == nil
		}
		all = slices.DeleteFunc(all, func(child string) bool { return !strings.HasPrefix(child, "wait-") })
		slices.SortFunc(all, func(a, b string) int { return cmp.Compare(sequence(a)-sequence(b), 0) })
		n := slices.Index(all, mine)
		path := s.i.lockPath(resource)
		if n < 0 {
			return true
		}
		if n > 0 {
			path = s.i.container(resource) + "/" + all[n-1]
		}
		exists, changed, err := s.watch(ctx, path)
		if err != nil || n == 0 && !exists {
			return ctx.Err() == nil
		}
		if n > 0 && !exists {
			continue
		}
		if !wait(ctx, changed) {
			return false
		}
		if n > 0 {
			// The one before was woken, or has gone. It gets a moment to take the
			// lease; if nobody has it after that, this process may already be the
			// first.
			kept, stop := context.WithTimeout(ctx, keptFor)
			s.appears(kept, s.i.lockPath(resource), 20*time.Millisecond)
			stop()
		}
	}
}

// sequence is the number that ZooKeeper gave a node. It is an int32 that wraps,
// so two are compared by their difference.
func sequence(node string) int32 {
	n, _ := strconv.ParseInt(strings.TrimPrefix(node, "wait-"), 10, 64)
	return int32(n)
}

// appears returns when a node exists, or that is not known, or ctx ends. It asks:
// the client and the server would keep a watch of a node that never comes.
func (s *session) appears(ctx context.Context, path string, every time.Duration) {
	for {
		if stat, err := s.stat(ctx, path); err != nil || stat != nil {
			return
		}
		select {
		case <-time.After(every):
		case <-ctx.Done():
			return
		}
	}
}

// watch reports whether a node exists, and closes changed when that changes or
// is not known; changed may be nil if there is no such node. All that watch a
// node share one watch, because the client keeps each until it fires.
func (s *session) watch(ctx context.Context, path string) (exists bool, changed <-chan struct{}, err error) {
	s.i.mu.Lock()
	w := s.watched[path]
	s.i.mu.Unlock()
	if w != nil {
		stat, err := s.stat(ctx, path)
		return stat != nil, w.changed, err
	}
	events, err := call(ctx, s, func(c *zk.Conn) (<-chan zk.Event, error) {
		_, _, events, err := c.GetW(path)
		return events, err
	})
	if errors.Is(err, zk.ErrNoNode) {
		return false, nil, nil
	}
	if err != nil {
		return false, nil, err
	}
	w = &watched{changed: make(chan struct{})}
	s.i.mu.Lock()
	s.watched[path] = w
	s.i.mu.Unlock()
	go func() {
		select {
		case <-events:
		case <-s.done:
		}
		s.i.mu.Lock()
		if s.watched[path] == w {
			delete(s.watched, path)
		}
		s.i.mu.Unlock()
		close(w.changed)
	}()
	return true, w.changed, nil
}
