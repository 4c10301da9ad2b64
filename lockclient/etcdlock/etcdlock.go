// Package etcdlock issues leases from etcd.
//
// # What it guarantees
//
// The token is a base plus the revision of the transaction that created the
// lease's key. etcd's revision grows over release, compaction, defragmentation,
// restart and leader change. The base makes tokens survive more: it is set from
// the clock at first use, so that the tokens of a wiped cluster stay above its
// earlier ones, and [Issuer.RaiseEpoch], or fencectl, raises it
// after a restore; [Issuer.Advance] raises it above the tokens of another lock system.
//
// # What it does not
//
// Residual risk: a snapshot that was restored without --bump-revision, or
// --force-new-cluster, repeats revisions and with them tokens until RaiseEpoch is
// called. An issuer that keeps running through it refuses (guard.ErrMarkAhead) if it
// asks before the revision is again what it was, or finds a lower base; another process
// cannot know. So restart every process that holds or waits for a lease after RaiseEpoch.
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
// Below the prefix, by default "fencepost/": base,
// lease/RESOURCE (JSON, attached to an etcd lease), spent/RESOURCE/LEASE for an
// hour, queue/RESOURCE/PROCESS for ten seconds, attempt/PROCESS, and cut/RESOURCE/REQUEST
// for good, the records of force unlocks.
//
// # Operators
//
// [Issuer] is a lockadmin.Admin: what it cannot do is to purge and to inspect. A role of
// etcd that may write below the prefix may change its records, too.
//
// # What it costs
//
// Three writes: an etcd lease is granted, a transaction puts a key that is attached to
// it, and a release revokes it.
//
// # What a late request does
//
// An acquire is two requests, for an etcd lease and for the key. The second also puts
// the issuer's attempt key, and takes effect only while that key's etcd lease runs,
// which ends before the request's timeout. etcd's leases end late: TTLs are
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
//
// AcquiredAt is the wall clock of the process that was granted the lease: etcd
// does not report a time. Reclaimed is never reported.
//
// # Where to read on
//
// etcdlock.go has the options, acquire.go acquire, renewal and release, base.go the number
// that tokens are above, watch.go the queue, errors.go what an error means. operate.go has
// operators' calls.
package etcdlock

import (
	"context"
	"crypto/rand"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

const (
	spentFor = 3600 // seconds for which a spent lease ID is remembered
	placeFor = 10   // seconds for which a place in the queue is kept without a new watch
	minTTL   = 2    // seconds; see LeaseGrant's minimum
)

// Options configures [New]. The zero value is the default.
type Options struct {
	// Prefix begins every key; empty means "fencepost/".
	Prefix string
}

// Issuer issues leases from etcd. It is safe for concurrent use; call [New].
type Issuer struct {
	client  *clientv3.Client
	prefix  string
	process string
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc

	mu       sync.Mutex
	cluster  uint64            // its ID, once it is known
	revision int64             // the highest seen
	base     stored            // as last read
	attempts map[int64]attempt // by TTL
	places   map[string]clientv3.LeaseID
}

var _ driver.Issuer = (*Issuer)(nil)

// New returns an issuer on client, which the caller closes. It sends nothing.
// opts may be nil. The error is a [*guard.InvalidError].
func New(client *clientv3.Client, opts *Options) (*Issuer, error) {
	if client == nil {
		return nil, guard.Invalid("client", "", "must not be nil")
	}
	i := &Issuer{client: client, prefix: "fencepost/", process: rand.Text(),
		attempts: map[int64]attempt{}, places: map[string]clientv3.LeaseID{}}
	if opts != nil && opts.Prefix != "" {
		i.prefix = opts.Prefix
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

func (i *Issuer) attemptKey() string              { return i.prefix + "attempt/" + i.process }
func (i *Issuer) leaseKey(resource string) string { return i.prefix + "lease/" + resource }
func (i *Issuer) baseKey() string                 { return i.prefix + "base" }
func (i *Issuer) queue(resource string) string    { return i.prefix + "queue/" + resource + "\x00" }
func (i *Issuer) spentKey(resource, id string) string {
	return i.prefix + "spent/" + resource + "\x00" + id
}
