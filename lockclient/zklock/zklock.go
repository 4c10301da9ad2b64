// Package zklock issues leases from ZooKeeper, 3.5.3 or newer.
//
// # What it guarantees
//
// The token is a base plus the zxid of the transaction that created the lease's
// node. Zxids grow over release, restart and election. The base makes tokens
// survive more: it is set from the clock at first use, so that tokens after a wiped
// data directory stay above the earlier ones, and [Issuer.RaiseEpoch], or the command
// fencectl-zookeeper, raises it after a restore. [Issuer.Advance] raises one resource above the tokens of another
// lock system. A restored snapshot repeats zxids and with them tokens until
// RaiseEpoch is called: an issuer that keeps running through it notices and refuses
// (guard.ErrMarkAhead), a new process cannot know.
//
// # What it does not
//
// Residual risk: a holder whose server is cut off from the leader learns late
// that its session has ended, because servers respond to pings and reads on their
// own. So a deadline counts from an older write, see "Deadlines" below; that is
// a measured margin, not a proof. It is a matter of ticks: servers that get no
// processor time for longer use it up. If it does not hold, a second holder has
// the higher token and a fence refuses the first.
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
// ZooKeeper has sessions, not leases. The issuer has one session for each TTL in
// use, with that TTL as its timeout; if a lease is not renewed while its session
// lives, the issuer deletes it. TTLs are multiples of a tick, at least four and
// at most twenty: the servers' own bounds are two and twenty, and a session of
// less than four would be over before a renewal is known to count.
//
// A renewal is a write, and the issuer writes once a tick besides. The leader
// learns of a follower's clients with its pings, twice a tick. So a write proves
// that the leader knew of an earlier write that was carried out a tick before it
// was sent, and the deadline counts from the earlier one, which is one to two
// ticks older than the renewal.
//
// # Reads
//
// A server reads what it knows, which may be behind the leader. What the issuer says
// of a lease that another session has is read after a sync.
//
// # Nodes
//
// Below the root, by default "/fencepost": base, beat-PROCESS (ephemeral), and
// for each resource a container r-RESOURCE, whose value is the floor of its
// tokens, with the children lock and id-LEASE (ephemeral), wait-N (ephemeral,
// sequential), floor, and id-LEASE again, not ephemeral, for an hour after a
// lease ID was spent.
//
// # What a late request does
//
// An acquire takes effect only in the session that it was sent in. One that is
// delayed in the network may take effect until that session ends, which is its
// TTL and a tick after the servers last heard from it. A lease ID that was
// released without a token is never granted, however late.
//
// # Failure by failure
//
//   - No quorum, or a response was lost: guard.ErrOutcomeUnknown; the same lease
//     ID finds its own grant, also in another session.
//   - No rights, a foreign value under a node: guard.ErrSetup, and nothing was written.
//   - A session that the servers grant for another time than requested:
//     guard.ErrUnavailable, and nothing was written.
//
// Reclaimed is never reported.
package zklock

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

const (
	minTicks, maxTicks = 4, 20
	controlTicks       = 6 // of the session that waiters have their places by
	spentFor           = time.Hour
	placeFor           = 2 * time.Second // for which a place in the queue is kept without a watch
	idleFor            = time.Minute     // after which a session without leases is closed
	maxAdoptions       = 50              // of one lease by other sessions
)

// Options configures [New]. The zero value is the default.
type Options struct {
	// Root is the node that all others are below; empty means "/fencepost". It
	// is created if missing; its parent is not.
	Root string
	// TickTime is the servers' tickTime; 0 means two seconds, which is their
	// default. A different one is noticed when a session gets a timeout other
	// than the requested one.
	TickTime time.Duration
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

	mu       sync.Mutex
	sessions map[time.Duration]*session // by timeout
	base     base                       // as last read
	seen     int64                      // the highest zxid of any response
	places   map[string]*place          // in the queue, by resource
	closed   bool
	closing  sync.WaitGroup
}

var (
	_ driver.Issuer = (*Issuer)(nil)
	_ driver.Floors = (*Issuer)(nil)
	_ driver.Epochs = (*Issuer)(nil)
)

// New returns an issuer on an ensemble, each server as host:port. It does not
// connect before the first request. opts may be nil. The error is a
// [*guard.InvalidError].
func New(servers []string, opts *Options) (*Issuer, error) {
	i := &Issuer{servers: servers, sessions: map[time.Duration]*session{}, places: map[string]*place{}}
	if opts != nil {
		i.opts = *opts
	}
	if i.opts.Root == "" {
		i.opts.Root = "/fencepost"
	}
	if i.opts.TickTime == 0 {
		i.opts.TickTime = 2 * time.Second
	}
	if i.opts.Dialer == nil {
		i.opts.Dialer = net.DialTimeout
	}
	if i.opts.ACL == nil {
		i.opts.ACL = zk.WorldACL(zk.PermAll)
	}
	tick := i.opts.TickTime
	switch {
	case len(servers) == 0:
		return nil, guard.Missing("servers")
	case tick < 10*time.Millisecond || tick > time.Minute || tick%time.Millisecond != 0:
		return nil, guard.Invalid("Options.TickTime", tick.String(), "must be whole milliseconds, 10 ms to a minute")
	case !strings.HasPrefix(i.opts.Root, "/") || strings.HasSuffix(i.opts.Root, "/"):
		return nil, guard.Invalid("Options.Root", i.opts.Root, "must begin with a slash and not end with one")
	}
	i.ctx, i.cancel = context.WithCancel(context.Background())
	return i, nil
}

// Limits: TTLs of whole ticks, four to twenty.
func (i *Issuer) Limits() driver.Limits {
	tick := i.opts.TickTime
	return driver.Limits{MinTTL: minTicks * tick, MaxTTL: maxTicks * tick, TTLStep: tick,
		Batch: 50, Poll: 5 * time.Second, MetadataBytes: 1000}
}

// Close closes the sessions, which ends their leases.
func (i *Issuer) Close() error {
	i.mu.Lock()
	i.closed = true
	all := make([]*session, 0, len(i.sessions))
	for _, s := range i.sessions {
		all = append(all, s)
	}
	i.mu.Unlock()
	i.cancel()
	for _, s := range all {
		s.end()
	}
	i.closing.Wait()
	return nil
}

// name escapes s for a node's name: letters, digits and a few signs stay.
func name(s string) string {
	var out strings.Builder
	for n := range len(s) {
		c := s[n]
		if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-_:=@,", c) >= 0 {
			out.WriteByte(c)
		} else {
			fmt.Fprintf(&out, "%%%02X", c)
		}
	}
	return out.String()
}

func (i *Issuer) basePath() string                 { return i.opts.Root + "/base" }
func (i *Issuer) container(resource string) string { return i.opts.Root + "/r-" + name(resource) }
func (i *Issuer) lockPath(resource string) string  { return i.container(resource) + "/lock" }
func (i *Issuer) idPath(resource, id string) string {
	return i.container(resource) + "/id-" + name(id)
}

func deletion(path string, version int32) *zk.DeleteRequest {
	return &zk.DeleteRequest{Path: path, Version: version}
}

func (i *Issuer) create(path string, value []byte, flags int32) *zk.CreateRequest {
	return &zk.CreateRequest{Path: path, Data: value, Acl: i.opts.ACL, Flags: flags}
}
