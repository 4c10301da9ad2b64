// Package zklock issues leases from ZooKeeper, 3.5.3 or newer.
//
// # What it guarantees
//
// The token is a base plus the zxid of the transaction that granted the lease. Zxids
// grow over release, restart and election. The base makes tokens
// survive more: it is set from the clock at first use, so that tokens after a wiped
// data directory stay above the earlier ones, and [Issuer.RaiseEpoch], or
// fencectl, raises it after a restore; [Issuer.Advance] raises it above the tokens of another
// lock system. A restored snapshot repeats zxids and with them tokens until
// RaiseEpoch is called: an issuer that keeps running through it notices and refuses
// (guard.ErrMarkAhead) once it is granted a token that is not above its own, or finds a
// lower base; another process cannot know. So restart every process that holds or waits
// for a lease after RaiseEpoch.
//
// # What it does not
//
// Residual risk: the clock that decides when a lease is over is the leader's, and with
// an election it becomes another server's. If that is ahead by more than a second, a
// lease may end before its holder's deadline. The second holder has the higher token,
// so a fence refuses the first.
//
// # Use
//
//	issuer, err := zklock.New([]string{"zk1:2181", "zk2:2181", "zk3:2181"}, nil)
//	if err != nil {
//		return err
//	}
//	locks, err := lockclient.New(issuer, "worker-7", nil)
//
// # Deadlines
//
// A lease is a node, and a grant and a renewal write it. ZooKeeper stores with each
// write the leader's time, so that the lease is over when the leader's time is the TTL
// and a second later: the second is for servers whose clocks differ. Nobody needs to
// delete it: whoever asks next takes it over. So no lease depends on a session.
//
// # Reads
//
// A server reads what it knows, which may be behind the leader. What the issuer says
// of a lease is read after a write of its own, whose time is the one to compare with.
//
// # Nodes
//
// Below the root, by default "/fencepost": base with one child, whose name is the base,
// beat-SESSION (ephemeral), and for each resource a container r-RESOURCE with the children
// lock and grant-RANDOM, while the lease runs and until it is taken over, wait-N (ephemeral,
// sequential), id-LEASE for an hour after a lease ID was spent, and cut-REQUEST for good, the record
// of a force unlock. A holder that crashed leaves the first two behind until the resource is leased again.
//
// # Operators
//
// [Issuer] is a lockadmin.Admin: what it cannot do is to purge and to inspect. Who may write below the
// root may change its records, too.
//
// # What a late request does
//
// What bounds a late attempt is its session, not Request.Timeout: every write takes effect
// only in the session that it was sent in. An acquire that is delayed in the network may take
// effect until that session ends, which is ten seconds and a tick after the servers last
// heard from it. While the process runs and is connected, also over another connection, its session
// goes on, so that an acquire stuck in an old connection has no other bound; the lease that it
// is granted then ends with its TTL. A lease ID that was released without a token is never
// granted, however late. A renewal that arrives after its lease's end, and any request of an
// earlier grant, has no effect.
//
// # Failure by failure
//
//   - No quorum, or a response was lost: guard.ErrOutcomeUnknown; the same lease
//     ID finds its own grant, also from another process.
//   - No rights, a foreign value under a node: guard.ErrSetup, and nothing was written.
//
// Reclaimed is never reported.
//
// # Where to read on
//
// zklock.go has the options, session.go the connection that requests go through, acquire.go
// acquire and renewal, release.go release, base.go the number that tokens are above, watch.go
// the queue, errors.go what an error means. operate.go has operators' calls.
package zklock

import (
	"context"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

const (
	sessionFor   = 10 * time.Second // without a connection
	clocksDiffer = time.Second      // at most, those of the servers
	spentFor     = time.Hour
	placeFor     = 2 * time.Second // for which a place in the queue is kept without a watch
)

// Options configures [New]. The zero value is the default.
type Options struct {
	// Root is the node that all others are below; empty means "/fencepost". It
	// is created if missing; its parent is not.
	Root string
	// Auth and Scheme are presented to the servers, such as "user:password"
	// under "digest"; empty means none.
	Scheme, Auth string
	// ACL is set on every node; nil gives everybody all permissions.
	ACL []zk.ACL
	// Dialer connects, such as with TLS; nil means net.DialTimeout.
	Dialer zk.Dialer
}

// Issuer issues leases from ZooKeeper. It is safe for concurrent use; call [New].
type Issuer struct {
	servers []string
	opts    Options
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	closing sync.WaitGroup

	mu     sync.Mutex
	latest *session          // nil if it is over
	base   base              // as last read
	seen   guard.Token       // the highest of any grant
	places map[string]*place // in the queue, by resource
}

var _ driver.Issuer = (*Issuer)(nil)

// New returns an issuer on an ensemble, each server as host:port. It does not
// connect before the first request. opts may be nil. The error is a
// [*guard.InvalidError].
func New(servers []string, opts *Options) (*Issuer, error) {
	i := &Issuer{servers: servers, places: map[string]*place{}}
	if opts != nil {
		i.opts = *opts
	}
	if i.opts.Root == "" {
		i.opts.Root = "/fencepost"
	}
	if i.opts.Dialer == nil {
		i.opts.Dialer = net.DialTimeout
	}
	if i.opts.ACL == nil {
		i.opts.ACL = zk.WorldACL(zk.PermAll)
	}
	switch {
	case len(servers) == 0:
		return nil, guard.Missing("servers")
	case !strings.HasPrefix(i.opts.Root, "/") || strings.HasSuffix(i.opts.Root, "/"):
		return nil, guard.Invalid("Options.Root", i.opts.Root, "must begin with a slash and not end with one")
	}
	i.ctx, i.cancel = context.WithCancel(context.Background())
	return i, nil
}

// Limits: TTLs in whole milliseconds, from a second.
func (i *Issuer) Limits() driver.Limits {
	return driver.Limits{MinTTL: time.Second, TTLStep: time.Millisecond, Batch: 50, Poll: 5 * time.Second, MetadataBytes: 1000}
}

// Close closes the session, which gives up the places in the queues.
func (i *Issuer) Close() error {
	i.mu.Lock()
	i.cancel()
	s := i.latest
	i.mu.Unlock()
	if s != nil {
		s.end()
	}
	i.closing.Wait()
	return nil
}

func (i *Issuer) basePath() string { return i.opts.Root + "/base" }

// valuePath is the node that exists while the base has that value. A transaction checks
// it: after a restore another value may have the version that a node had.
func (i *Issuer) valuePath(base int64) string {
	return i.basePath() + "/" + strconv.FormatInt(base, 10)
}
func (i *Issuer) container(resource string) string {
	return i.opts.Root + "/r-" + url.PathEscape(resource)
}
func (i *Issuer) lockPath(resource string) string { return i.container(resource) + "/lock" }

// grantPath is the node of one grant. No two grants have one name, so that what is sent for
// a grant does nothing to another, whatever their lease IDs and versions.
func (i *Issuer) grantPath(resource, grant string) string {
	return i.container(resource) + "/grant-" + grant
}

// idPath is the node of a lease ID that was spent.
func (i *Issuer) idPath(resource, id string) string {
	return i.container(resource) + "/id-" + url.PathEscape(id)
}

func (i *Issuer) create(path string, value []byte, flags int32) *zk.CreateRequest {
	return &zk.CreateRequest{Path: path, Data: value, Acl: i.opts.ACL, Flags: flags}
}

func set(path string, value []byte, version int32) *zk.SetDataRequest {
	return &zk.SetDataRequest{Path: path, Data: value, Version: version}
}

func check(path string, version int32) *zk.CheckVersionRequest {
	return &zk.CheckVersionRequest{Path: path, Version: version}
}

func deletion(path string, version int32) *zk.DeleteRequest {
	return &zk.DeleteRequest{Path: path, Version: version}
}
