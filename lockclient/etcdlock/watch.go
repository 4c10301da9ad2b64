package etcdlock

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/sequence"
)

// Watch returns who has the lease. A waiter has a place in the queue by a key of its
// own and watches the one before it, so that a release wakes only the first.
func (i *Issuer) Watch(ctx context.Context, w driver.Watch, wake func()) (driver.Watching, error) {
	watching, err := i.watch(ctx, w, wake)
	return watching, failed("watch", guard.Claim{Resource: w.Resource, LeaseID: w.LeaseID}, err)
}

func (i *Issuer) watch(ctx context.Context, w driver.Watch, wake func()) (out driver.Watching, err error) {
	if i.ctx.Err() != nil {
		return out, errClosed
	}
	if w.LeaseID != "" {
		if err := i.join(ctx, w.Resource); err != nil {
			return out, err
		}
	}
	resp, err := i.get(ctx, i.leaseKey(w.Resource))
	if err != nil {
		return out, err
	}
	h, err := heldOf(i.leaseKey(w.Resource), resp.Kvs)
	if err != nil {
		return out, err
	}
	watching, stop := context.WithCancel(clientv3.WithRequireLeader(i.ctx))
	go func() {
		defer stop()
		if w.LeaseID == "" {
			i.changed(watching, i.leaseKey(w.Resource), resp.Header.Revision+1, false)
		} else {
			i.turn(watching, w.Resource, resp.Header.Revision+1)
		}
		if watching.Err() == nil {
			wake()
		}
	}()
	out.Stop = stop
	if h != nil && h.ID != w.LeaseID {
		out.Held = i.heldBy(ctx, w.Resource, h)
	}
	return out, nil
}

// join takes this process's place in the queue, or keeps it.
func (i *Issuer) join(ctx context.Context, resource string) error {
	i.mu.Lock()
	place, ok := i.places[resource]
	i.mu.Unlock()
	if ok {
		if _, err := i.client.KeepAliveOnce(ctx, place); err == nil {
			return nil
		}
	}
	lease, err := i.client.Grant(ctx, placeFor)
	if err == nil {
		_, err = i.client.Put(ctx, i.queue(resource)+i.process, "", clientv3.WithLease(lease.ID))
	}
	if err != nil {
		return sequence.Unwritten{Err: err} // a place holds nothing
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.ctx.Err() != nil { // Close has left the lines
		go i.revoke(lease.ID)
		return errClosed
	}
	i.places[resource] = lease.ID
	return nil
}

// leave gives up the place in the queue, so that the next is the first.
func (i *Issuer) leave(resource string) {
	i.mu.Lock()
	place, ok := i.places[resource]
	delete(i.places, resource)
	i.mu.Unlock()
	if ok {
		go i.revoke(place)
	}
}

// turn returns when it is this process's turn: it is the first in the queue and the
// lease's key was deleted since the revision; or when that is not known.
func (i *Issuer) turn(ctx context.Context, resource string, revision int64) {
	mine := i.queue(resource) + i.process
	for ctx.Err() == nil {
		resp, err := i.get(ctx, i.queue(resource), clientv3.WithPrefix(), clientv3.WithKeysOnly(),
			clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
		if err != nil {
			return
		}
		before := ""
		for _, kv := range resp.Kvs {
			if string(kv.Key) == mine {
				break
			}
			before = string(kv.Key)
		}
		if before == "" {
			// A waiter that ends its watch will watch again, or ask.
			if i.changed(ctx, i.leaseKey(resource), revision, true) != 0 && ctx.Err() == nil {
				i.leave(resource)
			}
			return
		}
		if i.changed(ctx, before, resp.Header.Revision+1, true) == 0 {
			return
		}
		// The one before was woken, or has gone. It gets a moment to take the
		// lease; if nobody has it after that, this process may already be the
		// first.
		now, err := i.get(ctx, i.leaseKey(resource), clientv3.WithCountOnly())
		if err != nil {
			return
		}
		taken := now.Header.Revision
		if now.Count == 0 {
			kept, stop := context.WithTimeout(ctx, sequence.KeptFor)
			taken = i.changed(kept, i.leaseKey(resource), taken+1, false)
			stop()
		}
		if taken != 0 {
			revision = taken + 1
		}
	}
}

// changed waits for a change of key, or for its deletion, and returns its revision; 0 if
// the watch failed.
func (i *Issuer) changed(ctx context.Context, key string, revision int64, deletion bool) int64 {
	for resp := range i.client.Watch(ctx, key, clientv3.WithRev(revision)) {
		if resp.Err() != nil {
			return 0
		}
		for _, e := range resp.Events {
			if !deletion || e.Type == clientv3.EventTypeDelete {
				return e.Kv.ModRevision
			}
		}
	}
	return 0
}
