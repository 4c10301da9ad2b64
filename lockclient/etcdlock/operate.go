package etcdlock

import (
	"context"
	"iter"
	"strconv"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/sequence"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
)

// The operators' calls. Only leases that run are known: etcd forgets the others. HeldFor is by
// this process's clock, since etcd has none.
var (
	_ lockadmin.Admin  = (*Issuer)(nil)
	_ driver.Explainer = (*Issuer)(nil)
)

// pageOf is how many keys are read at once.
const pageOf = 500

// Get returns who has the lease, and how many wait for it.
func (i *Issuer) Get(ctx context.Context, resource string) (lockadmin.LeaseInfo, error) {
	if err := guard.ValidateResource(resource); err != nil {
		return lockadmin.LeaseInfo{}, err
	}
	resp, err := i.get(ctx, i.leaseKey(resource))
	var info lockadmin.LeaseInfo
	if err == nil {
		info, err = i.info(ctx, resource, resp.Kvs)
	}
	return info, failed("get", guard.Claim{Resource: resource}, err)
}

// info completes what stands under a lease's key.
func (i *Issuer) info(ctx context.Context, resource string, kvs []*mvccpb.KeyValue) (lockadmin.LeaseInfo, error) {
	info := lockadmin.LeaseInfo{Resource: resource, State: lockadmin.StateFree}
	h, err := heldOf(i.leaseKey(resource), kvs)
	if err != nil {
		return info, err
	}
	if h != nil {
		ttl, err := i.client.TimeToLive(ctx, h.lease)
		if err != nil {
			return info, sequence.Unwritten{Err: err}
		}
		info = h.Info(resource, max(time.Duration(ttl.TTL)*time.Second, time.Millisecond)) // its key is there
	}
	queue, err := i.get(ctx, i.queue(resource), clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err == nil {
		info.Waiters, info.Awaited = int(queue.Count), queue.Count > 0
	}
	return info, err
}

// List yields the leases that run. It reads three keys for each.
func (i *Issuer) List(ctx context.Context, pattern string, opts *lockadmin.ListOptions) iter.Seq2[lockadmin.LeaseInfo, error] {
	selected, err := sequence.Listed(pattern, opts)
	if err != nil {
		return lockadmin.Failed[lockadmin.LeaseInfo](err)
	}
	return func(yield func(lockadmin.LeaseInfo, error) bool) {
		end := clientv3.GetPrefixRangeEnd(i.leaseKey(""))
		for from := i.leaseKey(selected.From()); ; {
			resp, err := i.get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(pageOf))
			var page []lockadmin.LeaseInfo
			if err == nil {
				page, err = i.infos(ctx, resp.Kvs, selected)
			}
			if err != nil {
				yield(lockadmin.LeaseInfo{}, failed("list", guard.Claim{}, err))
				return
			}
			for _, info := range page {
				if selected.Lists(info) && !yield(info, nil) {
					return
				}
			}
			if !resp.More {
				return
			}
			from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
		}
	}
}

// infos completes a page, several at once.
func (i *Issuer) infos(ctx context.Context, kvs []*mvccpb.KeyValue, selected sequence.Selection) (page []lockadmin.LeaseInfo, err error) {
	all, errs := make([]lockadmin.LeaseInfo, len(kvs)), make([]error, len(kvs))
	var wg sync.WaitGroup
	slots := make(chan struct{}, 32)
	for n, kv := range kvs {
		resource := string(kv.Key)[len(i.leaseKey("")):]
		if !selected.Names(resource) {
			continue
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			all[n], errs[n] = i.info(ctx, resource, kvs[n:n+1])
		})
	}
	wg.Wait()
	for n := range all {
		if errs[n] != nil {
			return nil, errs[n]
		}
		if all[n].Resource != "" {
			page = append(page, all[n])
		}
	}
	return page, nil
}

func (i *Issuer) cutKey(resource, requestID string) string {
	return i.prefix + "cut/" + resource + "\x00" + requestID
}

// ForceUnlock deletes the lease's key, whoever has it, and stores the record, in one
// transaction, whose revision makes the invalidated token. A request ID counts for its resource.
// The lease ID of the cut lease is not granted again for an hour.
func (i *Issuer) ForceUnlock(ctx context.Context, resource, actor, reason string, opts *lockadmin.ForceUnlockOptions) (lockadmin.ForceUnlocked, error) {
	var h *held
	var created int64
	var base stored
	leaseKey := i.leaseKey(resource)
	done, requestID, err := sequence.ForceUnlock(resource, actor, reason, opts, func(requestID string) (c sequence.Cutting, err error) {
		if _, err := i.currentBase(ctx); err != nil { // it is there now
			return c, err
		}
		key := i.cutKey(resource, requestID)
		resp, err := i.client.Txn(ctx).Then(clientv3.OpGet(leaseKey), clientv3.OpGet(i.baseKey()), clientv3.OpGet(key)).Commit()
		if err != nil {
			return c, sequence.Unwritten{Err: err}
		}
		kvs := func(n int) []*mvccpb.KeyValue { return resp.Responses[n].GetResponseRange().Kvs }
		if before := kvs(2); len(before) > 0 {
			record, err := sequence.ReadCut(key, before[0].Value, before[0].CreateRevision)
			c.Done = &record
			return c, err
		}
		created = 0
		if h, err = heldOf(leaseKey, kvs(0)); err == nil {
			base, err = storedOf(i.baseKey(), kvs(1))
		}
		if err == nil {
			c.Now, err = i.info(ctx, resource, kvs(0))
		}
		if h != nil {
			created = kvs(0)[0].CreateRevision
		}
		c.Base, c.Number = base.value, resp.Header.Revision
		return c, err
	}, func(record []byte, requestID string) (number int64, done bool, err error) {
		writes := []clientv3.Op{clientv3.OpPut(i.cutKey(resource, requestID), string(record))}
		if h != nil {
			hour, err := i.client.Grant(ctx, spentFor)
			if err != nil {
				return 0, false, sequence.Unwritten{Err: err}
			}
			writes = append(writes, clientv3.OpDelete(leaseKey), clientv3.OpPut(i.spentKey(resource, h.ID), "", clientv3.WithLease(hour.ID)))
		}
		before := i.reached()
		resp, err := i.client.Txn(ctx).If(
			clientv3.Compare(clientv3.CreateRevision(leaseKey), "=", created),
			clientv3.Compare(clientv3.CreateRevision(i.cutKey(resource, requestID)), "=", 0),
			clientv3.Compare(clientv3.ModRevision(i.baseKey()), "=", base.modified),
			clientv3.Compare(clientv3.Value(i.baseKey()), "=", base.text()),
		).Then(writes...).Commit()
		if err != nil || !resp.Succeeded {
			return 0, false, err
		}
		if h != nil {
			go i.revoke(h.lease) // no key needs it
		}
		return resp.Header.Revision, true, i.forward(before+1, resp.Header)
	})
	return done, failed("force unlock", guard.Claim{Resource: resource, LeaseID: requestID}, err)
}

// Audit yields the force unlocks.
func (i *Issuer) Audit(ctx context.Context, pattern string, opts *lockadmin.AuditOptions) iter.Seq2[lockadmin.AuditRecord, error] {
	selected, err := sequence.Audited(pattern, opts)
	if err != nil {
		return lockadmin.Failed[lockadmin.AuditRecord](err)
	}
	return func(yield func(lockadmin.AuditRecord, error) bool) {
		err := i.cuts(ctx, i.prefix+"cut/", func(r lockadmin.AuditRecord) bool { return !selected.Records(r) || yield(r, nil) })
		if err != nil {
			yield(lockadmin.AuditRecord{}, failed("audit", guard.Claim{}, err))
		}
	}
}

// cuts calls f for each record below a key, the latest first, until it returns false.
func (i *Issuer) cuts(ctx context.Context, below string, f func(lockadmin.AuditRecord) bool) error {
	opts := []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithLimit(pageOf), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend)}
	for last := int64(0); ; {
		page := opts
		if last != 0 {
			page = append(page[:len(page):len(page)], clientv3.WithMaxCreateRev(last-1))
		}
		resp, err := i.get(ctx, below, page...)
		if err != nil {
			return err
		}
		for _, kv := range resp.Kvs {
			r, err := sequence.ReadCut(string(kv.Key), kv.Value, kv.CreateRevision)
			if err != nil {
				return err
			}
			if !f(r) {
				return nil
			}
			last = kv.CreateRevision
		}
		if len(resp.Kvs) < pageOf {
			return nil
		}
	}
}

// Why returns who force-unlocked a lease; nil if nobody did.
func (i *Issuer) Why(ctx context.Context, claim guard.Claim) (why error) {
	_ = i.cuts(ctx, i.cutKey(claim.Resource, ""), func(r lockadmin.AuditRecord) bool { // unread is unknown
		if r.Cut.LeaseID == claim.LeaseID && r.Cut.Token == claim.Token {
			why = sequence.Why(r)
		}
		return why == nil
	})
	return why
}

// AdvanceFloor is Advance, which raises the tokens of every resource; it is refused for no
// holder, whose token stays.
func (i *Issuer) AdvanceFloor(ctx context.Context, above guard.Token) (guard.Token, error) {
	var old stored
	reached, err := sequence.Advance(above, func() (sequence.Standing, error) {
		if _, err := i.currentBase(ctx); err != nil {
			return sequence.Standing{}, err
		}
		resp, err := i.get(ctx, i.baseKey())
		if err == nil {
			old, err = storedOf(i.baseKey(), resp.Kvs)
		}
		if err != nil {
			return sequence.Standing{}, err
		}
		return sequence.Standing{Base: old.value, Number: resp.Header.Revision}, nil
	}, func(value int64) (bool, error) { return i.putBase(ctx, old, value) })
	return reached, failed("advance floor", guard.Claim{}, err)
}

// Epoch returns the base, and the token that every later grant is above.
func (i *Issuer) Epoch(ctx context.Context) (lockadmin.Epoch, error) {
	_, err := i.currentBase(ctx)
	var epoch lockadmin.Epoch
	if err == nil {
		epoch, err = i.epoch(ctx)
	}
	return epoch, failed("epoch", guard.Claim{}, err)
}

func (i *Issuer) epoch(ctx context.Context) (lockadmin.Epoch, error) {
	resp, err := i.get(ctx, i.baseKey())
	if err != nil {
		return lockadmin.Epoch{}, err
	}
	base, err := storedOf(i.baseKey(), resp.Kvs)
	return lockadmin.Epoch{Number: base.value, Base: base.value, Floor: sequence.Token(base.value, resp.Header.Revision),
		SystemIdentifier: strconv.FormatUint(resp.Header.ClusterId, 16)}, err
}

// Purge is not supported.
func (i *Issuer) Purge(context.Context, *lockadmin.PurgeOptions) (lockadmin.Purged, error) {
	return lockadmin.Purged{}, &lockadmin.UnsupportedError{Op: "purge", Engine: "etcd", Why: "it keeps nothing of a lease that is over"}
}

// Inspect is not supported.
func (i *Issuer) Inspect(context.Context) ([]lockadmin.Finding, error) {
	return nil, &lockadmin.UnsupportedError{Op: "inspect", Engine: "etcd", Why: "it has no setting that leases depend on; etcdctl endpoint health says how it is"}
}
