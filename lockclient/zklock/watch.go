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
	"github.com/fencepost-go/fencepost/lockclient/internal/sequence"
)

// place is this process's place in a resource's queue.
type place struct {
	s        *session
	resource string
	node     string // its name
	watches  int
	left     *time.Timer // gives it up; nil while it is watched
}

// Watch returns who has the lease. A waiter has a place in the queue by a node of its
// own and watches the one before it, so that a release wakes only the first. For a
// watcher of a lease that nobody has, the issuer asks once a tick.
func (i *Issuer) Watch(ctx context.Context, w driver.Watch, wake func()) (driver.Watching, error) {
	watching, err := i.watch(ctx, w, wake)
	return watching, failed("watch", guard.Claim{Resource: w.Resource, LeaseID: w.LeaseID}, err)
}

func (i *Issuer) watch(ctx context.Context, w driver.Watch, wake func()) (out driver.Watching, err error) {
	s, err := i.session(ctx, controlTicks*i.opts.TickTime)
	if err != nil {
		return out, err
	}
	var p *place
	if w.LeaseID != "" {
		if p, err = i.join(ctx, s, w.Resource); err != nil {
			return out, err
		}
	}
	// The watch comes first: what changes after it is not missed.
	var changed <-chan struct{}
	if err = s.catchUp(ctx); err == nil && p == nil {
		changed, err = s.changed(ctx, i.lockPath(w.Resource))
	}
	var h *held
	if err == nil {
		h, err = s.holder(ctx, w.Resource)
	}
	if err != nil {
		i.unwatch(p)
		return out, err
	}
	watching, cancel := context.WithCancel(i.ctx)
	stop := context.AfterFunc(watching, func() { i.unwatch(p) })
	go func() {
		defer cancel()
		switch {
		case p != nil:
			if s.turn(watching, p) && stop() {
				i.leave(p)
			}
		case changed != nil:
			wait(watching, changed)
		default:
			s.appears(watching, i.lockPath(w.Resource), i.opts.TickTime)
		}
		if watching.Err() == nil {
			wake()
		}
	}()
	out.Stop = func() {
		if stop() {
			i.unwatch(p)
		}
		cancel()
	}
	if h != nil && h.ID != w.LeaseID {
		out.Held = heldBy(w.Resource, h)
	}
	return out, nil
}

// wait reports whether c was closed before ctx ended.
func wait(ctx context.Context, c <-chan struct{}) bool {
	select {
	case <-ctx.Done():
		return false
	case <-c:
		return true
	}
}

// join takes this process's place in the queue, or keeps it.
func (i *Issuer) join(ctx context.Context, s *session, resource string) (*place, error) {
	if p := i.placeIn(s, resource, nil); p != nil {
		return p, nil
	}
	if err := s.makeContainer(ctx, resource); err != nil {
		return nil, err
	}
	path, err := call(ctx, s, func(c *zk.Conn) (string, error) {
		return c.Create(i.container(resource)+"/wait-", nil, zk.FlagEphemeralSequential, i.opts.ACL)
	})
	if err != nil {
		return nil, sequence.Unwritten{Err: err} // a place holds nothing
	}
	mine := &place{s: s, resource: resource, node: path[strings.LastIndexByte(path, '/')+1:]}
	p := i.placeIn(s, resource, mine)
	if p != mine { // another waiter of this process was faster
		go mine.drop()
	}
	return p, nil
}

// placeIn counts a watch of the session's place; without one it is new, which may be nil.
func (i *Issuer) placeIn(s *session, resource string, new *place) *place {
	i.mu.Lock()
	defer i.mu.Unlock()
	p := i.places[resource]
	if p == nil || p.s != s {
		if new == nil {
			return nil
		}
		p = new
		i.places[resource] = p
	}
	if p.left != nil {
		p.left.Stop()
		p.left = nil
	}
	p.watches++
	return p
}

// unwatch keeps, for a moment, the place of a waiter that asks or has abandoned its acquire.
func (i *Issuer) unwatch(p *place) {
	if p == nil {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	p.watches--
	if p.watches == 0 && i.places[p.resource] == p {
		p.left = time.AfterFunc(placeFor, func() { i.leave(p) })
	}
}

// leave gives up the place in the queue, so that the next is the first.
func (i *Issuer) leave(p *place) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.leaveLocked(p)
}

func (i *Issuer) leaveLocked(p *place) {
	if i.places[p.resource] == p {
		delete(i.places, p.resource)
		go p.drop()
	}
}

// leaveUnwatched gives up the place of a waiter that was granted the lease before
// its turn came, unless another one watches. Those behind it would wait for it
// until the place runs out.
func (i *Issuer) leaveUnwatched(resource string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if p := i.places[resource]; p != nil && p.watches == 0 {
		i.leaveLocked(p)
	}
}

// drop deletes a place. If that fails, it ends with the session.
func (p *place) drop() {
	ctx, cancel := context.WithTimeout(p.s.i.ctx, p.s.timeout)
	defer cancel()
	do(ctx, p.s, func(c *zk.Conn) error { return c.Delete(p.s.i.container(p.resource)+"/"+p.node, -1) })
}

// turn returns when it is this place's turn: it is the first in the queue and nobody
// has the lease; or when that is not known. It returns false when ctx ends.
func (s *session) turn(ctx context.Context, p *place) bool {
	container, lock := s.i.container(p.resource), s.i.lockPath(p.resource)
	for {
		all, err := s.children(ctx, p.resource, "wait-")
		if err != nil {
			return ctx.Err() == nil
		}
		slices.SortFunc(all, func(a, b string) int { return cmp.Compare(number(a)-number(b), 0) })
		n := slices.Index(all, p.node)
		if n < 0 {
			return true
		}
		ahead := lock
		if n > 0 {
			ahead = container + "/" + all[n-1]
		}
		changed, err := s.changed(ctx, ahead)
		switch {
		case err != nil || changed == nil && n == 0:
			return ctx.Err() == nil
		case changed != nil && !wait(ctx, changed):
			return false
		case changed != nil && n > 0:
			// The one before was woken, or has gone. It gets a moment to take the
			// lease; if nobody has it after that, this process may already be the
			// first.
			kept, stop := context.WithTimeout(ctx, sequence.KeptFor)
			s.appears(kept, lock, 20*time.Millisecond)
			stop()
		}
	}
}

// number is the one that ZooKeeper gave a node. It is an int32 that wraps,
// so two are compared by their difference.
func number(node string) int32 {
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

// changed returns what is closed when the node changes, or that is not known; nil if
// there is no such node. All that watch a node share one watch, because the client
// keeps each until it fires.
func (s *session) changed(ctx context.Context, path string) (<-chan struct{}, error) {
	s.i.mu.Lock()
	changed := s.watched[path]
	s.i.mu.Unlock()
	if changed != nil {
		return changed, nil
	}
	events, err := call(ctx, s, func(c *zk.Conn) (<-chan zk.Event, error) {
		_, _, events, err := c.GetW(path)
		return events, err
	})
	if errors.Is(err, zk.ErrNoNode) {
		return nil, nil
	}
	if err != nil {
		return nil, sequence.Unwritten{Err: err}
	}
	changed = make(chan struct{})
	s.i.mu.Lock()
	s.watched[path] = changed
	s.i.mu.Unlock()
	go func() {
		select {
		case <-events:
		case <-s.done:
		}
		s.i.mu.Lock()
		if s.watched[path] == changed {
			delete(s.watched, path)
		}
		s.i.mu.Unlock()
		close(changed)
	}()
	return changed, nil
}
