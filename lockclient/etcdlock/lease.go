package etcdlock

import (
	"context"
	"errors"
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

const (
	maxSpare = 16                     // etcd leases that wait for their next key
	youngFor = 5 * time.Second        // at most, for a spare one
	patience = 200 * time.Millisecond // with another request's attempt key
)

// etcdLease is an etcd lease that this process requested. It has one owner: a
// claim, a request, or the spares.
type etcdLease struct {
	id   clientv3.LeaseID
	ttl  int64         // seconds
	from time.Duration // before it was requested
	// slot is a key that every grant under this etcd lease writes, and moved is
	// its revision then, 0 before the first. A transaction that the network
	// repeats finds it changed: the released lease ID is not granted again,
	// though the etcd lease still runs.
	slot  string
	moved int64
}

// young reports whether enough of its TTL is left to be granted once more.
func (l *etcdLease) young(now time.Duration) bool {
	return now < l.from+min(time.Duration(l.ttl)*time.Second/8, youngFor)
}

// lease returns an etcd lease that no key uses: a spare one, or a new one.
func (i *Issuer) lease(ctx context.Context, from time.Duration, ttl int64) (l *etcdLease, spare bool, err error) {
	i.mu.Lock()
	spares := i.spare
	i.spare = nil
	for _, s := range spares {
		switch {
		case !s.young(from):
			go i.revoke(s.id)
		case l == nil && s.ttl == ttl:
			l = s
		default:
			i.spare = append(i.spare, s)
		}
	}
	i.mu.Unlock()
	if l != nil {
		return l, true, nil
	}
	granted, err := i.client.Grant(ctx, ttl)
	if err != nil {
		return nil, false, err
	}
	return &etcdLease{id: granted.ID, ttl: ttl, from: from, slot: i.prefix + "slot/" + strconv.FormatInt(int64(granted.ID), 16)}, false, nil
}

// keep saves an etcd lease that no key uses for reuse, or revokes it.
func (i *Issuer) keep(l *etcdLease) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if l.young(driver.Now()) && len(i.spare) < maxSpare {
		i.spare = append(i.spare, l)
	} else {
		go i.revoke(l.id)
	}
}

// remember records which claim an etcd lease belongs to.
func (i *Issuer) remember(claim guard.Claim, l *etcdLease) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.granted) >= maxGranted {
		clear(i.granted)
	}
	i.granted[claim] = l
}

// end frees a lease that this process was granted.
func (i *Issuer) end(ctx context.Context, claim guard.Claim, l *etcdLease) (freed bool, err error) {
	if l.young(driver.Now()) {
		if freed, err = i.unlock(ctx, claim, l.moved); err == nil {
			i.keep(l)
			return freed, nil
		}
	} else {
		_, err = i.client.Revoke(ctx, l.id)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, rpctypes.ErrLeaseNotFound):
			return false, nil
		}
		err = failed("release", claim, err)
	}
	i.remember(claim, l) // for the repeated request
	return false, err
}

// unlock deletes the resource's key if it is the one created at that revision.
func (i *Issuer) unlock(ctx context.Context, claim guard.Claim, created int64) (freed bool, err error) {
	key := i.leaseKey(claim.Resource)
	resp, err := i.client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", created)).Then(clientv3.OpDelete(key)).Commit()
	if err != nil {
		return false, failed("release", claim, err)
	}
	return resp.Succeeded, nil
}

// revoke revokes an etcd lease that no key needs; if that fails, it ends by
// itself.
func (i *Issuer) revoke(lease clientv3.LeaseID) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second) // also after Close
	defer cancel()
	i.client.Revoke(ctx, lease)
}

// attempt is a key that exists as long as requests of its time may take effect.
type attempt struct {
	done chan struct{} // closed when it is written, or has failed
	key  string        // empty until it is written
	from time.Duration // before its lease was requested
}

// attempt returns the key that must exist for a request of this time to take
// effect. Requests of one timeout share it for half of its life. One that finds
// it being written waits a moment for it, and writes its own if that takes
// longer: a request that hangs delays no other.
func (i *Issuer) attempt(ctx context.Context, from, timeout time.Duration) (string, error) {
	ttl := max(int64(timeout/time.Second)-1, minTTL)
	late := time.NewTimer(patience)
	defer late.Stop()
	for {
		i.mu.Lock()
		a := i.attempts[ttl]
		if a != nil && a.key != "" && from < a.from+time.Duration(ttl)*time.Second/2 {
			i.mu.Unlock()
			return a.key, nil
		}
		if a == nil || a.key != "" {
			a = &attempt{done: make(chan struct{})}
			i.attempts[ttl] = a
			i.mu.Unlock()
			return i.begin(ctx, ttl, a)
		}
		i.mu.Unlock()
		select {
		case <-a.done:
		case <-late.C:
			return i.begin(ctx, ttl, &attempt{done: make(chan struct{})})
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
}

// begin writes an attempt's key and shares it.
func (i *Issuer) begin(ctx context.Context, ttl int64, a *attempt) (string, error) {
	defer close(a.done)
	from := driver.Now()
	i.mu.Lock()
	i.count++
	key := i.prefix + "attempt/" + i.process + "/" + strconv.Itoa(i.count)
	i.mu.Unlock()
	lease, err := i.client.Grant(ctx, ttl)
	if err == nil {
		_, err = i.client.Put(ctx, key, "", clientv3.WithLease(lease.ID))
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	shared := i.attempts[ttl]
	if err != nil {
		if shared == a {
			delete(i.attempts, ttl)
		}
		return "", err
	}
	a.key, a.from = key, from
	if shared == nil || shared.key == "" || shared.from < from {
		i.attempts[ttl] = a
	}
	return key, nil
}
