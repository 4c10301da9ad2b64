// Package etcdlock issues leases from etcd.
//
// # What it guarantees
//
// The token is a base plus the revision of the transaction that created the
// lease's key. etcd's revision grows over release, compaction, defragmentation,
// restart and leader change. The base makes tokens survive more: it is set from
// the clock at first use, so that the tokens of a wiped cluster stay above its
// earlier ones, and [Issuer.RaiseEpoch], or the command fencectl-etcd, raises it
// after a restore. [Issuer.Advance] raises one resource above the tokens of another
// lock system.
//
// # What it does not
//
// Residual risk: a snapshot that was restored without --bump-revision, or
// --force-new-cluster, repeats revisions and with them tokens until RaiseEpoch is
// called. An issuer that keeps running through it notices that the revision went
// back and refuses (guard.ErrMarkAhead); a new process cannot know.
//
// # Use
//
//	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"localhost:2379"}})
//	if err != nil {
//		return err
//	}
//	issuer, err := etcdlock.New(client, nil)
//	if err != nil {
//		return err
//	}
//	locks, err := lockclient.New(issuer, "worker-7", nil)
//
// # Keys
//
// Below the prefix, by default "fencepost/": base, floor/RESOURCE,
// lease/RESOURCE (JSON, attached to an etcd lease), spent/RESOURCE/LEASE for an
// hour, queue/RESOURCE/PROCESS for ten seconds, attempt/PROCESS/N, slot/N.
//
// # What it costs
//
// An etcd lease is a third write besides the two transactions that put a key and
// delete it. A process that releases a lease in the first eighth of its TTL, and
// within five seconds, reuses the etcd lease for the next lease that it is
// granted with that TTL, which then takes only two writes. That next lease
// counts from when the etcd lease was granted, so its holder has at least seven
// eighths of the TTL to renew it.
//
// # What a late request does
//
// An acquire is two requests, for an etcd lease and for the key. The second
// takes effect only while the issuer's attempt key exists, which has an etcd
// lease that ends before the request's timeout. etcd's leases end late: TTLs are
// whole seconds, at least one and a half election timeouts (2 s by default), are
// checked twice a second, and are extended by a leader change. So an acquire
// that is delayed in the network may take effect up to two and a half seconds
// after its timeout, or later if a leader is lost before that. A lease ID that
// was released without a token is never granted, however late.
//
// # Failure by failure
//
//   - No quorum, or a response was lost: guard.ErrOutcomeUnknown; the same lease
//     ID finds its own grant.
//   - No rights, a foreign value under a key: guard.ErrSetup, and nothing was written.
//   - Fewer members than required: guard.ErrUnavailable, and nothing was written.
//
// AcquiredAt is the wall clock of the process that was granted the lease: etcd
// does not report a time. Reclaimed is never reported.
package etcdlock

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

const (
	spentFor   = 3600                   // seconds for which a spent lease ID is remembered
	placeFor   = 10                     // seconds for which a place in the queue is kept without a new watch
	keptFor    = 300 * time.Millisecond // for the process that was woken before
	minTTL     = 2                      // seconds; see LeaseGrant's minimum
	maxGranted = 100_000                // leases whose etcd lease is remembered
	maxRetries = 5                      // of a transaction whose base or floor has been raised since it was read
)

// Options configures [New]. The zero value is the default.
type Options struct {
	// Prefix begins every key; empty means "fencepost/".
	Prefix string
	// Members is how many voting members the cluster must have at least; with
	// fewer, such as a single node, requests are refused. 0 means no minimum.
	Members int
}

// Issuer issues leases from etcd. It is safe for concurrent use; call [New].
type Issuer struct {
	client  *clientv3.Client
	prefix  string
	members int
	process string
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc

	mu       sync.Mutex
	cluster  uint64             // its ID, once it is known
	revision int64              // the highest seen
	base     stored             // as last read
	attempts map[int64]*attempt // by TTL
	count    int                // of attempt keys
	places   map[string]clientv3.LeaseID
	granted  map[guard.Claim]*etcdLease // a cache: what Release need not look up
	spare    []*etcdLease               // that no key uses
}

// stored is a number under a key, and the key's revision; both 0 if there is
// none.
type stored struct{ value, modified int64 }

// held is the value of a lease key.
type held struct {
	Version  int    `json:"v"`
	ID       string `json:"id"`
	Owner    string `json:"owner"`
	Metadata string `json:"metadata,omitempty"`
	Base     int64  `json:"base,string"` // the token less the key's create revision
	At       int64  `json:"at"`          // ms since 1970, by the holder's clock

	token   guard.Token
	created int64 // the key's create revision
	lease   clientv3.LeaseID
}

var (
	_ driver.Issuer = (*Issuer)(nil)
	_ driver.Floors = (*Issuer)(nil)
	_ driver.Epochs = (*Issuer)(nil)
)

// New returns an issuer on client, which the caller closes. It sends nothing.
// opts may be nil. The error is a [*guard.InvalidError].
func New(client *clientv3.Client, opts *Options) (*Issuer, error) {
	if client == nil {
		return nil, guard.Invalid("client", "", "must not be nil")
	}
	i := &Issuer{client: client, prefix: "fencepost/", process: rand.Text(), attempts: map[int64]*attempt{}, places: map[string]clientv3.LeaseID{},
		granted: map[guard.Claim]*etcdLease{}}
	if opts != nil {
		i.members = opts.Members
		if opts.Prefix != "" {
			i.prefix = opts.Prefix
		}
	}
	if i.members < 0 {
		return nil, guard.Invalid("Options.Members", strconv.Itoa(i.members), "must not be negative")
	}
	i.ctx, i.cancel = context.WithCancel(context.Background())
	return i, nil
}

// Limits: TTLs of whole seconds, and at least two.
func (i *Issuer) Limits() driver.Limits {
	return driver.Limits{MinTTL: minTTL * time.Second, TTLStep: time.Second,
		Batch: 100, Poll: 5 * time.Second, MetadataBytes: 1000}
}

// Close ends the watches and leaves the lines, for which it waits a second at
// most. It does not close the client.
func (i *Issuer) Close() error {
	i.cancel()
	i.mu.Lock()
	places := i.places
	i.places = map[string]clientv3.LeaseID{}
	i.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for _, place := range places {
		wg.Go(func() { i.client.Revoke(ctx, place) })
	}
	wg.Wait()
	return nil
}

func (i *Issuer) leaseKey(resource string) string { return i.prefix + "lease/" + resource }
func (i *Issuer) floorKey(resource string) string { return i.prefix + "floor/" + resource }
func (i *Issuer) baseKey() string                 { return i.prefix + "base" }
func (i *Issuer) queue(resource string) string    { return i.prefix + "queue/" + resource + "\x00" }
func (i *Issuer) spentKey(resource, id string) string {
	return i.prefix + "spent/" + resource + "\x00" + id
}

// Acquire grants or refuses.
func (i *Issuer) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	from := driver.Now()
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	if r.Waiting { // most likely the lease is held: one exchange instead of three
		if h, err := i.holder(ctx, r.Resource); err != nil || h != nil && h.ID != r.LeaseID {
			return driver.Grant{}, i.refusal(ctx, r.Claim(), h, err)
		}
	}
	attemptKey, err := i.attempt(ctx, from, r.Timeout)
	if err != nil {
		return driver.Grant{}, unavailable("acquire", r.Claim(), err) // nothing of this request was sent
	}
	for {
		l, spare, err := i.lease(ctx, from, int64(r.TTL/time.Second))
		if err != nil {
			return driver.Grant{}, unavailable("acquire", r.Claim(), err) // a lease without a key holds nothing
		}
		grant, err := i.create(ctx, r, l, attemptKey)
		switch {
		case err == nil && grant.Token != guard.NoToken:
			grant.From = l.from
			if r.Waiting { // if its turn had not come, those behind it would wait for its place to run out
				i.leave(r.Resource)
			}
			return grant, nil
		case err == nil: // the lease is this lease ID's already
			i.keep(l)
			return i.extendOwn(ctx, r, from)
		case errors.Is(err, driver.ErrHeld), errors.Is(err, driver.ErrLeaseIDSpent), errors.Is(err, guard.ErrInvalid):
			i.keep(l)
		case errors.Is(err, rpctypes.ErrLeaseNotFound) && spare: // the cluster lost it
			continue
		case errors.Is(err, guard.ErrOutcomeUnknown):
			// The key may be there, and the next attempt of this lease ID may
			// take it for its own: a revoke in flight would end that lease.
		default:
			go i.revoke(l.id)
		}
		return grant, err
	}
}

// create puts the lease's key if nobody has the lease. The grant has no token if
// the lease already runs under the request's own ID.
func (i *Issuer) create(ctx context.Context, r driver.Request, l *etcdLease, attemptKey string) (driver.Grant, error) {
	base, err := i.currentBase(ctx)
	if err != nil {
		return driver.Grant{}, unavailable("acquire", r.Claim(), err)
	}
	var floor stored // most resources have none; a failed transaction returns it
	for range maxRetries {
		value := held{Version: 1, ID: r.LeaseID, Owner: r.Owner, Metadata: r.Metadata, Base: max(base.value, floor.value), At: time.Now().UnixMilli()}
		text, err := json.Marshal(value)
		if err != nil {
			return driver.Grant{}, unavailable("acquire", r.Claim(), err)
		}
		before := i.reached()
		resp, err := i.client.Txn(ctx).If(
			clientv3.Compare(clientv3.CreateRevision(i.leaseKey(r.Resource)), "=", 0),
			clientv3.Compare(clientv3.CreateRevision(i.spentKey(r.Resource, r.LeaseID)), "=", 0),
			clientv3.Compare(clientv3.CreateRevision(attemptKey), ">", 0),
			clientv3.Compare(clientv3.ModRevision(l.slot), "=", l.moved), // this transaction was not carried out before
			clientv3.Compare(clientv3.ModRevision(i.baseKey()), "=", base.modified),
			clientv3.Compare(clientv3.ModRevision(i.floorKey(r.Resource)), "=", floor.modified),
		).Then(
			clientv3.OpPut(i.leaseKey(r.Resource), string(text), clientv3.WithLease(l.id)),
			clientv3.OpPut(l.slot, "", clientv3.WithLease(l.id)),
		).Else(
			clientv3.OpGet(i.leaseKey(r.Resource)),
			clientv3.OpGet(i.spentKey(r.Resource, r.LeaseID), clientv3.WithCountOnly()),
			clientv3.OpGet(attemptKey, clientv3.WithCountOnly()),
			clientv3.OpGet(i.baseKey()),
			clientv3.OpGet(i.floorKey(r.Resource)),
		).Commit()
		if errors.Is(err, rpctypes.ErrLeaseNotFound) { // the request was so late that its lease had run out
			return driver.Grant{}, unavailable("acquire", r.Claim(), fmt.Errorf("%w: %w", driver.ErrLate, err))
		}
		if err != nil {
			return driver.Grant{}, failed("acquire", r.Claim(), err)
		}
		if resp.Succeeded {
			before++ // it wrote
		}
		if err := i.forward(before, resp.Header); err != nil {
			if resp.Succeeded {
				i.client.Revoke(ctx, l.id)
			}
			return driver.Grant{}, err
		}
		if resp.Succeeded {
			if value.Base > int64(guard.MaxToken)-resp.Header.Revision {
				i.client.Revoke(ctx, l.id)
				return driver.Grant{}, guard.Unavailable("acquire", r.Claim(), errors.New("the token space is exhausted"))
			}
			token := guard.Token(value.Base + resp.Header.Revision)
			l.moved = resp.Header.Revision
			i.remember(guard.Claim{Resource: r.Resource, LeaseID: r.LeaseID, Token: token}, l)
			return driver.Grant{Token: token, AcquiredAt: time.UnixMilli(value.At)}, nil
		}
		get := func(n int) *clientv3.GetResponse {
			return (*clientv3.GetResponse)(resp.Responses[n].GetResponseRange())
		}
		h, err := holderOf(i.leaseKey(r.Resource), get(0).Kvs)
		switch {
		case err != nil:
			return driver.Grant{}, unavailable("acquire", r.Claim(), err)
		case get(1).Count > 0:
			return driver.Grant{}, driver.ErrLeaseIDSpent
		case h != nil && h.ID == r.LeaseID && h.lease == l.id: // this very transaction arrived twice
			l.moved = h.created
			i.remember(guard.Claim{Resource: r.Resource, LeaseID: r.LeaseID, Token: h.token}, l)
			return driver.Grant{Token: h.token, AcquiredAt: time.UnixMilli(h.At)}, nil
		case h != nil && h.ID == r.LeaseID && h.Owner == r.Owner:
			return driver.Grant{}, nil
		case h != nil && h.ID == r.LeaseID:
			return driver.Grant{}, driver.LeaseIDInUse(r.LeaseID, h.Owner)
		case h != nil:
			return driver.Grant{}, i.refusal(ctx, r.Claim(), h, nil)
		case get(2).Count == 0:
			return driver.Grant{}, guard.Unavailable("acquire", r.Claim(), driver.ErrLate)
		}
		if base, err = storedOf(i.baseKey(), get(3).Kvs); err != nil {
			return driver.Grant{}, unavailable("acquire", r.Claim(), err)
		}
		if floor, err = storedOf(i.floorKey(r.Resource), get(4).Kvs); err != nil {
			return driver.Grant{}, unavailable("acquire", r.Claim(), err)
		}
		if base.modified == 0 { // somebody deleted it
			return driver.Grant{}, guard.Unavailable("acquire", r.Claim(), errors.New("the key "+i.baseKey()+" is gone; call RaiseEpoch"))
		}
		i.setBase(base)
	}
	return driver.Grant{}, guard.Unavailable("acquire", r.Claim(), errors.New("the base or the floor kept changing"))
}

// extendOwn is the result of a repeated acquire whose lease runs.
func (i *Issuer) extendOwn(ctx context.Context, r driver.Request, from time.Duration) (driver.Grant, error) {
	h, err := i.holder(ctx, r.Resource)
	switch {
	case err != nil:
		return driver.Grant{}, failed("acquire", r.Claim(), err)
	case h == nil || h.ID != r.LeaseID:
		return driver.Grant{}, i.refusal(ctx, r.Claim(), h, nil)
	case h.Owner != r.Owner:
		return driver.Grant{}, driver.LeaseIDInUse(r.LeaseID, h.Owner)
	}
	alive, err := i.client.KeepAliveOnce(ctx, h.lease)
	if err != nil {
		return driver.Grant{}, failed("acquire", r.Claim(), err)
	}
	// An etcd lease keeps the TTL that it was granted with.
	return driver.Grant{Token: h.token, AcquiredAt: time.UnixMilli(h.At), From: from, TTL: min(r.TTL, time.Duration(alive.TTL)*time.Second)}, nil
}

// refusal returns who has the lease and for how long; if nobody has it,
// Remaining is 0.
func (i *Issuer) refusal(ctx context.Context, claim guard.Claim, h *held, err error) error {
	if err != nil {
		return unavailable("acquire", claim, err) // only reads were sent
	}
	by := i.heldBy(ctx, claim.Resource, h)
	return by
}

func (i *Issuer) heldBy(ctx context.Context, resource string, h *held) *driver.HeldError {
	if h == nil {
		return &driver.HeldError{Resource: resource, ExpiresAt: time.Now()}
	}
	remaining := time.Second // unless the cluster responds
	if ttl, err := i.client.TimeToLive(ctx, h.lease); err == nil {
		remaining = max(time.Duration(ttl.TTL)*time.Second, time.Millisecond)
	}
	return &driver.HeldError{Resource: resource, Token: h.token, LeaseID: h.ID, Owner: h.Owner, Metadata: h.Metadata,
		Remaining: remaining, ExpiresAt: time.Now().Add(remaining)}
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
			results[n] = driver.Renewed{Err: unavailable("renew", r.Claim, err)} // only reads were sent
		}
		return
	}
	var wg sync.WaitGroup
	slots := make(chan struct{}, 32)
	for n, r := range renewals {
		h, err := holderOf(i.leaseKey(r.Claim.Resource), resp.Responses[n].GetResponseRange().Kvs)
		switch {
		case err != nil:
			results[n] = driver.Renewed{Err: unavailable("renew", r.Claim, err)}
			continue
		case h == nil || h.ID != r.Claim.LeaseID || h.token != r.Claim.Token:
			i.mu.Lock()
			delete(i.granted, r.Claim)
			i.mu.Unlock()
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

// Release ends the claim's lease: it revokes the etcd lease, or deletes the key
// that this claim created, never a key of that name that another created. Without a token it
// invalidates the lease ID first.
func (i *Issuer) Release(ctx context.Context, claim guard.Claim) (freed bool, err error) {
	i.mu.Lock()
	l := i.granted[claim]
	delete(i.granted, claim)
	i.mu.Unlock()
	if l != nil {
		return i.end(ctx, claim, l)
	}
	var h *held
	if claim.Token == guard.NoToken {
		hour, err := i.client.Grant(ctx, spentFor)
		if err != nil {
			return false, unavailable("release", claim, err)
		}
		resp, err := i.client.Txn(ctx).Then(
			clientv3.OpPut(i.spentKey(claim.Resource, claim.LeaseID), "", clientv3.WithLease(hour.ID)),
			clientv3.OpGet(i.leaseKey(claim.Resource)),
		).Commit()
		if err != nil {
			return false, failed("release", claim, err)
		}
		if h, err = holderOf(i.leaseKey(claim.Resource), resp.Responses[1].GetResponseRange().Kvs); err != nil {
			return false, unavailable("release", claim, err)
		}
	} else if h, err = i.holder(ctx, claim.Resource); err != nil {
		return false, unavailable("release", claim, err)
	}
	if h == nil || h.ID != claim.LeaseID || claim.Token != guard.NoToken && h.token != claim.Token {
		return false, nil
	}
	// The etcd lease is another process's, which may soon use it for another key.
	return i.unlock(ctx, claim, h.created)
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
		return fmt.Errorf("fencepost: %w: the cluster was %x and is %x, so it was replaced or this is another one; call RaiseEpoch, then restart the workers",
			guard.ErrMarkAhead, i.cluster, h.ClusterId)
	}
	if h.Revision < least {
		return fmt.Errorf("fencepost: %w: etcd's revision was at least %d and is %d, so the cluster was restored; call RaiseEpoch, then restart the workers",
			guard.ErrMarkAhead, least, h.Revision)
	}
	i.revision = max(i.revision, h.Revision)
	return nil
}

func (i *Issuer) holder(ctx context.Context, resource string) (*held, error) {
	resp, err := i.client.Get(ctx, i.leaseKey(resource))
	if err != nil {
		return nil, err
	}
	return holderOf(i.leaseKey(resource), resp.Kvs)
}

// holderOf reads a lease's key; nil if there is none.
func holderOf(key string, kvs []*mvccpb.KeyValue) (*held, error) {
	if len(kvs) == 0 {
		return nil, nil
	}
	h := &held{lease: clientv3.LeaseID(kvs[0].Lease)}
	if err := json.Unmarshal(kvs[0].Value, h); err != nil || h.Version != 1 || h.ID == "" || h.Base < 0 || h.Base > int64(guard.MaxToken)-kvs[0].CreateRevision || kvs[0].Lease == 0 {
		return nil, foreign{key, string(kvs[0].Value)}
	}
	h.created = kvs[0].CreateRevision
	h.token = guard.Token(h.Base + h.created)
	return h, nil
}

// storedOf reads a number under a key; zero if there is none.
func storedOf(key string, kvs []*mvccpb.KeyValue) (stored, error) {
	if len(kvs) == 0 {
		return stored{}, nil
	}
	n, err := strconv.ParseInt(string(kvs[0].Value), 10, 64)
	if err != nil || n < 0 {
		return stored{}, foreign{key, string(kvs[0].Value)}
	}
	return stored{value: n, modified: kvs[0].ModRevision}, nil
}

// foreign is a value that this package did not write.
type foreign struct{ key, value string }

func (e foreign) Error() string {
	return fmt.Sprintf("the key %q holds something else: %.64q", e.key, e.value)
}

// unavailable is for an error of a request that wrote nothing that matters.
func unavailable(op string, claim guard.Claim, err error) error {
	if verdict(err) == guard.ReasonSetup {
		return guard.Setup(op, claim, err)
	}
	return guard.Unavailable(op, claim, err)
}

// refusedFirst are what etcd says before it proposes a write, where another try may
// succeed: the users were changed at that moment, its queue is full, the node is a
// learner. "database space exceeded" is not one of them: the write that exceeds it is
// applied.
var refusedFirst = []string{
	rpctypes.ErrorDesc(rpctypes.ErrGRPCAuthOldRevision), rpctypes.ErrorDesc(rpctypes.ErrGRPCInvalidAuthToken),
	rpctypes.ErrorDesc(rpctypes.ErrGRPCRequestTooManyRequests), rpctypes.ErrorDesc(rpctypes.ErrGRPCNotSupportedForLearner),
}

// failed classifies the error of a write: the cluster refuses before it writes.
func failed(op string, claim guard.Claim, err error) error {
	switch verdict(err) {
	case guard.ReasonSetup:
		return guard.Setup(op, claim, err)
	case guard.ReasonUnavailable:
		return guard.Unavailable(op, claim, err)
	}
	return guard.OutcomeUnknown(op, claim, err)
}

// verdict is what an error says of a write; ReasonSetup also of a read.
func verdict(err error) guard.Reason {
	if errors.As(err, new(foreign)) {
		return guard.ReasonSetup
	}
	code, said := status.Code(err), status.Convert(err).Message()
	var e rpctypes.EtcdError
	if errors.As(err, &e) {
		code, said = e.Code(), e.Error()
	}
	if slices.Contains(refusedFirst, said) {
		return guard.ReasonUnavailable
	}
	switch code {
	case codes.PermissionDenied, codes.Unauthenticated, codes.InvalidArgument:
		return guard.ReasonSetup
	}
	return guard.ReasonOutcomeUnknown
}
