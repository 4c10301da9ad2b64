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
	node     string      // its name
	left     *time.Timer // gives it up; stopped while it is watched
}

// Watch returns who has the lease. A waiter has a place in the queue by a node of its
// own and watches the one before it, so that a release wakes only the first. For a
// watcher of a lease that nobody has, the issuer asks once a second.
func (i *Issuer) Watch(ctx context.Context, w driver.Watch, wake func()) (driver.Watching, error) {
	watching, err := i.watch(ctx, w, wake)
	return watching, failed("watch", guard.Claim{Resource: w.Resource, LeaseID: w.LeaseID}, err)
}

func (i *Issuer) watch(ctx context.Context, w driver.Watch, wake func()) (out driver.Watching, err error) {
	s, err := i.session(ctx)
	if err != nil {
		return out, err
	}
	var p *place
	if w.LeaseID != "" {
		if p, err = s.join(ctx, w.Resource); err != nil {
			return out, err
		}
	}
	watching, cancel := context.WithCancel(i.ctx)
	out.Stop = func() {
		cancel()
		if p != nil { // it is kept for a moment, for a waiter that asks or watches again
			p.left.Reset(placeFor)
		}
	}
	h, err := s.look(ctx, w.Resource)
	if err != nil {
		out.Stop()
		return driver.Watching{}, err
	}
	go func() {
		defer cancel()
		switch {
		case p != nil:
			s.turn(watching, p)
		case h != nil:
			s.change(watching, i.grantPath(w.Resource, h.Grant))
		default:
			s.appears(watching, i.lockPath(w.Resource), time.Second)
		}
		if watching.Err() != nil {
			return
		}
		if p != nil {
			i.leave(p)
		}
		wake()
	}()
	if h == nil || h.ID != w.LeaseID {
		out.Held = h.holds(w.Resource)
	}
	return out, nil
}

// join takes this process's place in the queue, or keeps it.
func (s *session) join(ctx context.Context, resource string) (*place, error) {
	s.i.mu.Lock()
	p := s.i.places[resource]
	s.i.mu.Unlock()
	if p != nil && p.s == s {
		p.left.Stop()
		return p, nil
	}
	if err := s.makeNode(ctx, s.i.container(resource), zk.FlagContainer); err != nil {
		return nil, err
	}
	path, err := call(ctx, s, func(c *zk.Conn) (string, error) {
		return c.Create(s.i.container(resource)+"/wait-", nil, zk.FlagEphemeralSequential, s.i.opts.ACL)
	})
	if err != nil {
		return nil, sequence.Unwritten{Err: err} // a place holds nothing
	}
	p = &place{s: s, resource: resource, node: path[strings.LastIndexByte(path, '/')+1:]}
	p.left = time.AfterFunc(placeFor, func() { s.i.leave(p) })
	p.left.Stop()
	s.i.mu.Lock()
	defer s.i.mu.Unlock()
	if other := s.i.places[resource]; other != nil { // another waiter of this process was faster, and will be woken
		go other.drop()
	}
	s.i.places[resource] = p
	return p, nil
}

// leave gives up the place in the queue, so that the next is the first.
func (i *Issuer) leave(p *place) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if p != nil && i.places[p.resource] == p {
		delete(i.places, p.resource)
		go p.drop()
	}
}

// drop deletes a place. If that fails, it ends with the session.
func (p *place) drop() {
	ctx, cancel := context.WithTimeout(p.s.i.ctx, sessionFor)
	defer cancel()
	call(ctx, p.s, func(c *zk.Conn) (struct{}, error) {
		return struct{}{}, c.Delete(p.s.i.container(p.resource)+"/"+p.node, -1)
	})
}

// turn returns when it is this place's turn: it is the first in the queue and the lease was
// released; or when that is not known, or ctx ends. That a lease runs out wakes nobody: a
// waiter knows when.
func (s *session) turn(ctx context.Context, p *place) {
	for {
		all, err := s.children(ctx, s.i.container(p.resource), "wait-")
		slices.SortFunc(all, func(a, b string) int { return cmp.Compare(number(a)-number(b), 0) })
		n := slices.Index(all, p.node)
		if err != nil || n < 0 {
			return
		}
		if n == 0 {
			if h, err := s.holder(ctx, p.resource, 0); err == nil && h != nil {
				s.change(ctx, s.i.grantPath(p.resource, h.Grant))
			}
			return
		}
		if !s.change(ctx, s.i.container(p.resource)+"/"+all[n-1]) {
			return
		}
		// The one before was woken, or has gone. It gets a moment to take the
		// lease; if nobody has it after that, this process may already be the
		// first.
		kept, stop := context.WithTimeout(ctx, sequence.KeptFor)
		s.appears(kept, s.i.lockPath(p.resource), 20*time.Millisecond)
		stop()
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
		if n, err := s.get(ctx, path); err != nil || n != nil {
			return
		}
		select {
		case <-time.After(every):
		case <-ctx.Done():
			return
		}
	}
}

// change reports whether a node has changed or is gone; false if that is not known or ctx
// ends. All that watch a node share one watch, because the client keeps each until it
// fires.
func (s *session) change(ctx context.Context, path string) bool {
	s.i.mu.Lock()
	changed := s.watched[path]
	s.i.mu.Unlock()
	if changed == nil {
		events, err := call(ctx, s, func(c *zk.Conn) (<-chan zk.Event, error) {
			_, _, events, err := c.GetW(path)
			return events, err
		})
		if err != nil {
			return errors.Is(err, zk.ErrNoNode)
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
	}
	select {
	case <-changed:
		return true
	case <-ctx.Done():
		return false
	}
}
