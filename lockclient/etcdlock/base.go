package etcdlock

import (
	"context"
	"strconv"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/sequence"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
)

// stored is a number under a key, and the key's revision; both 0 if there is
// none.
type stored struct{ value, modified int64 }

// text is what is stored.
func (s stored) text() string { return strconv.FormatInt(s.value, 10) }

// Advance raises the tokens of a resource that nobody holds above the given one, and those
// of every other resource with them: it raises the base.
// What it wrote is lost if the data is lost: repeat it after a restore. A token
// that is not below 2^62 is refused (guard.ErrInvalid).
func (i *Issuer) Advance(ctx context.Context, resource string, above guard.Token) (guard.Token, error) {
	leaseKey := i.leaseKey(resource)
	var old stored
	reached, err := sequence.Advance(above, func() (sequence.Standing, error) {
		if _, err := i.currentBase(ctx); err != nil { // it is there now
			return sequence.Standing{}, err
		}
		resp, err := i.client.Txn(ctx).Then(clientv3.OpGet(leaseKey), clientv3.OpGet(i.baseKey())).Commit()
		if err != nil {
			return sequence.Standing{}, sequence.Unwritten{Err: err}
		}
		h, err := heldOf(leaseKey, resp.Responses[0].GetResponseRange().Kvs)
		if err == nil {
			old, err = storedOf(i.baseKey(), resp.Responses[1].GetResponseRange().Kvs)
		}
		now := sequence.Standing{Base: old.value, Number: resp.Header.Revision}
		if h != nil {
			now.Held = i.heldBy(ctx, resource, h)
		}
		return now, err
	}, func(value int64) (bool, error) {
		return i.putBase(ctx, old, value, clientv3.Compare(clientv3.CreateRevision(leaseKey), "=", 0))
	})
	return reached, failed("advance", guard.Claim{Resource: resource}, err)
}

// RaiseEpoch raises all later tokens above those that the cluster issued before:
// it sets the base from this process's clock, or above the stored one if that is
// higher. Call it after every restore of a snapshot, and restart every process that holds
// or waits for a lease.
func (i *Issuer) RaiseEpoch(ctx context.Context) (lockadmin.Epoch, error) {
	if err := i.raiseEpoch(ctx); err != nil {
		return lockadmin.Epoch{}, failed("raise epoch", guard.Claim{}, err)
	}
	epoch, err := i.epoch(ctx)
	if err != nil { // it is raised, and calling again is harmless
		return epoch, guard.OutcomeUnknown("raise epoch", guard.Claim{}, err)
	}
	return epoch, nil
}

func (i *Issuer) raiseEpoch(ctx context.Context) error {
	for range sequence.MaxRetries {
		old, err := i.readBase(ctx)
		if err != nil {
			return err
		}
		i.mu.Lock()
		known := i.base // which may be above what was restored
		i.mu.Unlock()
		done, err := i.putBase(ctx, old, sequence.Raised(max(old.value, known.value)))
		if err != nil {
			return err
		}
		if done {
			i.mu.Lock()
			i.revision, i.cluster = 0, 0 // the step back has been handled
			i.mu.Unlock()
			return nil
		}
	}
	return sequence.ErrChanged
}

// currentBase returns the base as this issuer read it last. If the cluster has
// none, it is set from the clock.
func (i *Issuer) currentBase(ctx context.Context) (stored, error) {
	for range sequence.MaxRetries {
		i.mu.Lock()
		base := i.base
		i.mu.Unlock()
		if base.modified != 0 {
			return base, nil
		}
		base, err := i.readBase(ctx)
		if err != nil {
			return stored{}, err
		}
		if base.modified != 0 {
			i.setBase(base)
			return base, nil
		}
		if _, err := i.putBase(ctx, stored{}, sequence.First()); err != nil {
			return stored{}, sequence.Unwritten{Err: err} // a base grants nothing
		}
	}
	return stored{}, sequence.ErrChanged
}

func (i *Issuer) readBase(ctx context.Context) (stored, error) {
	resp, err := i.get(ctx, i.baseKey())
	if err != nil {
		return stored{}, err
	}
	return storedOf(i.baseKey(), resp.Kvs)
}

// putBase replaces a base, unless it has changed or a condition does not hold.
func (i *Issuer) putBase(ctx context.Context, old stored, value int64, also ...clientv3.Cmp) (bool, error) {
	also = append(also, clientv3.Compare(clientv3.ModRevision(i.baseKey()), "=", old.modified))
	if old.modified != 0 {
		also = append(also, clientv3.Compare(clientv3.Value(i.baseKey()), "=", old.text()))
	}
	base := stored{value: value}
	resp, err := i.client.Txn(ctx).If(also...).Then(clientv3.OpPut(i.baseKey(), base.text())).Commit()
	if err != nil || !resp.Succeeded {
		return false, err
	}
	base.modified = resp.Header.Revision
	i.setBase(base)
	return true, nil
}

// setBase replaces the known base, unless that is higher. The revision may be lower after a
// restore.
func (i *Issuer) setBase(base stored) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if base.value >= i.base.value {
		i.base = base
	}
}

// storedOf reads a number under a key; zero if there is none.
func storedOf(key string, kvs []*mvccpb.KeyValue) (stored, error) {
	if len(kvs) == 0 {
		return stored{}, nil
	}
	n, err := sequence.Number(key, kvs[0].Value)
	return stored{value: n, modified: kvs[0].ModRevision}, err
}

// reached is the highest revision seen. The response to a transaction sent now has
// none below it.
func (i *Issuer) reached() int64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.revision
}

// forward records a transaction's revision and refuses one below the lowest
// possible, and a cluster other than before.
func (i *Issuer) forward(least int64, h *etcdserverpb.ResponseHeader) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.cluster == 0 {
		i.cluster = h.ClusterId
	}
	if h.ClusterId != i.cluster {
		return sequence.WentBack("the cluster was %x and is %x, so it was replaced or this is another one", i.cluster, h.ClusterId)
	}
	if h.Revision < least {
		return sequence.WentBack("etcd's revision was at least %d and is %d, so the cluster was restored", least, h.Revision)
	}
	i.revision = max(i.revision, h.Revision)
	return nil
}
