package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/sequence"
)

// Acquire grants or refuses.
func (i *Issuer) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	from := driver.Now()
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	grant, err := i.acquire(ctx, r, from)
	return grant, failed("acquire", r.Claim(), err)
}

func (i *Issuer) acquire(ctx context.Context, r driver.Request, from time.Duration) (driver.Grant, error) {
	if r.Waiting { // most likely the lease is held: one exchange instead of three
		if h, err := i.holder(ctx, r.Resource); err != nil || h != nil && h.ID != r.LeaseID {
			return driver.Grant{}, i.refused(ctx, r.Resource, h, err)
		}
	}
	attempt, err := i.attempt(ctx, from, r.Timeout)
	if err != nil {
		return driver.Grant{}, err
	}
	lease, err := i.client.Grant(ctx, int64(r.TTL/time.Second))
	if err != nil {
		return driver.Grant{}, sequence.Unwritten{Err: err} // a lease without a key holds nothing
	}
	h, err := i.put(ctx, r, lease.ID, attempt)
	if err != nil {
		// After an unknown outcome the key may be there, and the next attempt of this
		// lease ID may take it for its own: a revoke in flight would end that lease.
		if !errors.Is(failed("", r.Claim(), err), guard.ErrOutcomeUnknown) {
			go i.revoke(lease.ID)
		}
		return driver.Grant{}, err
	}
	if h.lease != lease.ID { // the lease ID had the lease before
		go i.revoke(lease.ID)
		alive, err := i.client.KeepAliveOnce(ctx, h.lease)
		if err != nil {
			return driver.Grant{}, err
		}
		lease.TTL = alive.TTL // an etcd lease keeps the TTL that it was granted with
	}
	if r.Waiting { // if its turn had not come, those behind it would wait for its place to run out
		i.leave(r.Resource)
	}
	return driver.Grant{Token: h.Token, AcquiredAt: time.UnixMilli(h.At), From: from,
		TTL: min(r.TTL, time.Duration(lease.TTL)*time.Second)}, nil
}

// attempt is an etcd lease that ends before the timeout of the requests that use it.
type attempt struct {
	lease clientv3.LeaseID
	from  time.Duration // before it was requested
}

// attempt returns an etcd lease that ends before the request's timeout. Requests of one
// timeout share it for half of its life.
func (i *Issuer) attempt(ctx context.Context, from, timeout time.Duration) (clientv3.LeaseID, error) {
	ttl := max(int64(timeout/time.Second)-1, minTTL)
	i.mu.Lock()
	a, shared := i.attempts[ttl]
	i.mu.Unlock()
	if shared && from < a.from+time.Duration(ttl)*time.Second/2 {
		return a.lease, nil
	}
	began := driver.Now()
	lease, err := i.client.Grant(ctx, ttl)
	if err != nil {
		return 0, sequence.Unwritten{Err: err}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.attempts[ttl] = attempt{lease.ID, began}
	return lease.ID, nil
}

// drop lets the next request have an attempt of its own: this one has ended, perhaps
// because the cluster lost it.
func (i *Issuer) drop(lease clientv3.LeaseID) {
	i.mu.Lock()
	defer i.mu.Unlock()
	maps.DeleteFunc(i.attempts, func(_ int64, a attempt) bool { return a.lease == lease })
}

// put puts the resource's key, attached to the etcd lease, if nobody has the lease. If
// the lease ID has it already, what it returns is attached to another etcd lease.
func (i *Issuer) put(ctx context.Context, r driver.Request, lease, attempt clientv3.LeaseID) (*held, error) {
	base, err := i.currentBase(ctx)
	if err != nil {
		return nil, err
	}
	leaseKey, spentKey := i.leaseKey(r.Resource), i.spentKey(r.Resource, r.LeaseID)
	for range sequence.MaxRetries {
		l := sequence.New(r, base.value)
		l.At = time.Now().UnixMilli()
		before := i.reached()
		resp, err := i.client.Txn(ctx).If(
			clientv3.Compare(clientv3.CreateRevision(leaseKey), "=", 0),
			clientv3.Compare(clientv3.CreateRevision(spentKey), "=", 0),
			clientv3.Compare(clientv3.ModRevision(i.baseKey()), "=", base.modified),
			clientv3.Compare(clientv3.Value(i.baseKey()), "=", base.text()), // after a restore another may have that revision
		).Then(
			clientv3.OpPut(leaseKey, string(l.Text()), clientv3.WithLease(lease)),
			clientv3.OpPut(i.attemptKey(), "", clientv3.WithLease(attempt)), // refused if that has ended
		).Else(
			clientv3.OpGet(leaseKey),
			clientv3.OpGet(spentKey, clientv3.WithCountOnly()),
			clientv3.OpGet(i.baseKey()),
		).Commit()
		if errors.Is(err, rpctypes.ErrLeaseNotFound) {
			i.drop(attempt)
			return nil, sequence.Unwritten{Err: fmt.Errorf("%w: %w", driver.ErrLate, err)}
		}
		if err != nil {
			return nil, err
		}
		if resp.Succeeded {
			before++ // it wrote
		}
		err = i.forward(before, resp.Header)
		if resp.Succeeded {
			if l.Token = sequence.Token(l.Base, resp.Header.Revision); err == nil && l.Token == guard.NoToken {
				err = sequence.Unwritten{Err: sequence.ErrExhausted}
			}
			if err != nil {
				i.client.Revoke(ctx, lease)
			}
			return &held{l, lease}, err
		}
		if err != nil {
			return nil, err
		}
		get := func(n int) *etcdserverpb.RangeResponse { return resp.Responses[n].GetResponseRange() }
		h, err := heldOf(leaseKey, get(0).Kvs)
		switch {
		case err != nil:
			return nil, err
		case get(1).Count > 0:
			return nil, sequence.Refusal{Err: driver.ErrLeaseIDSpent}
		case h != nil && h.ID != r.LeaseID:
			return nil, i.refused(ctx, r.Resource, h, nil)
		case h != nil && h.Owner != r.Owner:
			return nil, sequence.Refusal{Err: driver.LeaseIDInUse(r.LeaseID, h.Owner)}
		case h != nil:
			return h, nil
		}
		old := base
		if base, err = storedOf(i.baseKey(), get(2).Kvs); err != nil {
			return nil, err
		}
		if base.modified == 0 { // somebody deleted it
			return nil, sequence.Unwritten{Err: errors.New("the key " + i.baseKey() + " is gone; call RaiseEpoch")}
		}
		if base.value < old.value {
			return nil, sequence.WentBack("the base was %d and is %d, so the cluster was restored", old.value, base.value)
		}
		i.setBase(base)
	}
	return nil, sequence.ErrChanged
}

// Renew reads the keys in one transaction, so that a lease whose key was
// deleted is over, and then extends the etcd leases concurrently.
func (i *Issuer) Renew(ctx context.Context, renewals []driver.Renewal, results []driver.Renewed) {
	from := driver.Now()
	gets := make([]clientv3.Op, len(renewals))
	for n, r := range renewals {
		gets[n] = clientv3.OpGet(i.leaseKey(r.Claim.Resource))
	}
	before := i.reached()
	resp, err := i.client.Txn(ctx).Then(gets...).Commit()
	if err == nil {
		err = i.forward(before, resp.Header)
	}
	if err != nil {
		for n, r := range renewals {
			results[n] = driver.Renewed{Err: failed("renew", r.Claim, sequence.Unwritten{Err: err})} // it only reads
		}
		return
	}
	var wg sync.WaitGroup
	slots := make(chan struct{}, 32)
	for n, r := range renewals {
		h, err := heldOf(i.leaseKey(r.Claim.Resource), resp.Responses[n].GetResponseRange().Kvs)
		switch {
		case err != nil:
			results[n] = driver.Renewed{Err: failed("renew", r.Claim, err)}
			continue
		case h == nil || h.ID != r.Claim.LeaseID || h.Token != r.Claim.Token:
			results[n] = driver.Renewed{State: driver.Over}
			continue
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			alive, err := i.client.KeepAliveOnce(ctx, h.lease)
			switch {
			case errors.Is(err, rpctypes.ErrLeaseNotFound):
				results[n] = driver.Renewed{State: driver.Over}
			case err != nil:
				results[n] = driver.Renewed{Err: failed("renew", r.Claim, err)}
			default:
				results[n] = driver.Renewed{State: driver.Extended, From: from, TTL: min(r.TTL, time.Duration(alive.TTL)*time.Second)}
			}
		})
	}
	wg.Wait()
}

// Release revokes the claim's etcd lease, which deletes its key and no successor's. Without
// a token it invalidates the lease ID first.
func (i *Issuer) Release(ctx context.Context, claim guard.Claim) (freed bool, err error) {
	find := i.invalidate
	if claim.Token != guard.NoToken {
		find = func(ctx context.Context, claim guard.Claim) (*held, error) { return i.holder(ctx, claim.Resource) }
	}
	h, err := find(ctx, claim)
	if err == nil && h != nil && h.ID == claim.LeaseID && (h.Token == claim.Token || claim.Token == guard.NoToken) {
		_, err = i.client.Revoke(ctx, h.lease)
		freed = err == nil
		if errors.Is(err, rpctypes.ErrLeaseNotFound) {
			err = nil
		}
	}
	return freed, failed("release", claim, err)
}

// invalidate puts a key under which no acquire of this lease ID succeeds, and returns who
// has the lease.
func (i *Issuer) invalidate(ctx context.Context, claim guard.Claim) (*held, error) {
	hour, err := i.client.Grant(ctx, spentFor)
	if err != nil {
		return nil, sequence.Unwritten{Err: err}
	}
	resp, err := i.client.Txn(ctx).Then(
		clientv3.OpPut(i.spentKey(claim.Resource, claim.LeaseID), "", clientv3.WithLease(hour.ID)),
		clientv3.OpGet(i.leaseKey(claim.Resource)),
	).Commit()
	if err != nil {
		return nil, err
	}
	return heldOf(i.leaseKey(claim.Resource), resp.Responses[1].GetResponseRange().Kvs)
}

// revoke revokes an etcd lease that no key needs; if that fails, it ends by
// itself.
func (i *Issuer) revoke(lease clientv3.LeaseID) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second) // also after Close
	defer cancel()
	i.client.Revoke(ctx, lease)
}

// get reads.
func (i *Issuer) get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	resp, err := i.client.Get(ctx, key, opts...)
	if err != nil {
		return nil, sequence.Unwritten{Err: err}
	}
	return resp, nil
}

// held is a lease, and the etcd lease that its key is attached to.
type held struct {
	*sequence.Lease
	lease clientv3.LeaseID
}

func (i *Issuer) holder(ctx context.Context, resource string) (*held, error) {
	resp, err := i.get(ctx, i.leaseKey(resource))
	if err != nil {
		return nil, err
	}
	return heldOf(i.leaseKey(resource), resp.Kvs)
}

// heldOf reads a lease's key; nil if there is none.
func heldOf(key string, kvs []*mvccpb.KeyValue) (*held, error) {
	if len(kvs) == 0 {
		return nil, nil
	}
	l, err := sequence.Read(key, kvs[0].Value, kvs[0].CreateRevision)
	if err == nil && kvs[0].Lease == 0 {
		err = sequence.Foreign{Place: key, Value: string(kvs[0].Value)}
	}
	if err != nil {
		return nil, err
	}
	return &held{l, clientv3.LeaseID(kvs[0].Lease)}, nil
}

// refused is the result of an acquire that found h, unless it could not see it.
func (i *Issuer) refused(ctx context.Context, resource string, h *held, err error) error {
	if err != nil {
		return err
	}
	return sequence.Refusal{Err: i.heldBy(ctx, resource, h)}
}

func (i *Issuer) heldBy(ctx context.Context, resource string, h *held) *driver.HeldError {
	if h == nil {
		return sequence.HeldBy(resource, nil, 0)
	}
	remaining := time.Second // unless the cluster responds
	if ttl, err := i.client.TimeToLive(ctx, h.lease); err == nil {
		remaining = max(time.Duration(ttl.TTL)*time.Second, time.Millisecond)
	}
	return sequence.HeldBy(resource, h.Lease, remaining)
}
