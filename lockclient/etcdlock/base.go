package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencepost-go/fencepost/guard"
)

// maxAdvance leaves room for the revisions to come, and for epochs.
const maxAdvance guard.Token = 1<<62 - 1

// lostAtMost is more revisions than a restore can lose.
const lostAtMost = 1 << 36

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
	for range maxRetries {
		resp, err := i.client.Txn(ctx).Then(clientv3.OpGet(i.leaseKey(resource)), clientv3.OpGet(i.floorKey(resource))).Commit()
		if err != nil {
			return guard.NoToken, unavailable("advance", claim, err)
		}
		h, err := holderOf(i.leaseKey(resource), resp.Responses[0].GetResponseRange().Kvs)
		if err != nil {
			return guard.NoToken, unavailable("advance", claim, err)
		}
		if h != nil && h.token < above {
			return guard.NoToken, i.heldBy(ctx, resource, h)
		}
		floor, err := storedOf(i.floorKey(resource), resp.Responses[1].GetResponseRange().Kvs)
		if err != nil {
			return guard.NoToken, unavailable("advance", claim, err)
		}
		base, err := i.currentBase(ctx)
		if err != nil {
			return guard.NoToken, unavailable("advance", claim, err)
		}
		reached := guard.MaxToken // if the tokens are used up
		if last := max(base.value, floor.value); last < int64(guard.MaxToken)-resp.Header.Revision {
			reached = guard.Token(last + resp.Header.Revision)
		}
		if reached >= above || h != nil {
			return max(reached, above), nil
		}
		put, err := i.client.Txn(ctx).If(
			clientv3.Compare(clientv3.CreateRevision(i.leaseKey(resource)), "=", 0),
			clientv3.Compare(clientv3.ModRevision(i.floorKey(resource)), "=", floor.modified),
		).Then(clientv3.OpPut(i.floorKey(resource), strconv.FormatInt(int64(above)-resp.Header.Revision, 10))).Commit()
		if err != nil {
			return guard.NoToken, failed("advance", claim, err)
		}
		if put.Succeeded {
			return above, nil
		}
	}
	return guard.NoToken, guard.Unavailable("advance", claim, errors.New("the lease or the floor kept changing"))
}

// RaiseEpoch raises all later tokens above those that the cluster issued before:
// it sets the base from this process's clock, or above the stored one if that is
// higher. Call it after every restore of a snapshot.
func (i *Issuer) RaiseEpoch(ctx context.Context) error {
	for range maxRetries {
		resp, err := i.client.Get(ctx, i.baseKey())
		if err != nil {
			return unavailable("raise epoch", guard.Claim{}, err)
		}
		old, err := storedOf(i.baseKey(), resp.Kvs)
		if err != nil {
			return unavailable("raise epoch", guard.Claim{}, err)
		}
		done, err := i.putBase(ctx, old, max(old.value+lostAtMost, time.Now().UnixMilli()<<20))
		if err != nil {
			return failed("raise epoch", guard.Claim{}, err)
		}
		if done {
			i.mu.Lock()
			i.revision, i.cluster = 0, 0 // the step back has been handled
			i.mu.Unlock()
			return nil
		}
	}
	return guard.Unavailable("raise epoch", guard.Claim{}, errors.New("the base kept changing"))
}

// currentBase returns the base as this issuer read it last. If the cluster has
// none, it is set from the clock.
func (i *Issuer) currentBase(ctx context.Context) (stored, error) {
	for range maxRetries {
		i.mu.Lock()
		base := i.base
		i.mu.Unlock()
		if base.modified != 0 {
			return base, nil
		}
		if err := i.checkMembers(ctx); err != nil {
			return stored{}, err
		}
		resp, err := i.client.Get(ctx, i.baseKey())
		if err != nil {
			return stored{}, err
		}
		if base, err = storedOf(i.baseKey(), resp.Kvs); err != nil {
			return stored{}, err
		}
		if base.modified != 0 {
			i.setBase(base)
			continue
		}
		if _, err := i.putBase(ctx, stored{}, time.Now().UnixMilli()<<20); err != nil {
			return stored{}, err
		}
	}
	return stored{}, errors.New("the base kept changing")
}

// checkMembers counts the cluster's voting members.
func (i *Issuer) checkMembers(ctx context.Context) error {
	if i.members == 0 {
		return nil
	}
	resp, err := i.client.MemberList(ctx)
	if err != nil {
		return fmt.Errorf("the cluster's members cannot be read: %w", err)
	}
	members := 0
	for _, m := range resp.Members {
		if !m.IsLearner {
			members++
		}
	}
	if members < i.members {
		return fmt.Errorf("the cluster has %d voting members, Options.Members requires %d", members, i.members)
	}
	return nil
}

func (i *Issuer) putBase(ctx context.Context, old stored, value int64) (bool, error) {
	resp, err := i.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(i.baseKey()), "=", old.modified)).
		Then(clientv3.OpPut(i.baseKey(), strconv.FormatInt(value, 10))).Commit()
	if err != nil || !resp.Succeeded {
		return false, err
	}
	i.setBase(stored{value: value, modified: resp.Header.Revision})
	return true, nil
}

func (i *Issuer) setBase(base stored) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if base.modified > i.base.modified {
		i.base = base
	}
}
