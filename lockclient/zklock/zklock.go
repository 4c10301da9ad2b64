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
//	issuer, err := zklock.New([]string{"zk1:2181", "zk2:2181", "zk3:2181"}, &zklock.Options{Members: 3})
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
//   - Fewer members than required, a session that the servers grant for another time
//     than requested: guard.ErrUnavailable, and nothing was written.
//
// Reclaimed is never reported.
package zklock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
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
	placeFor           = 2 * time.Second        // for which a place in the queue is kept without a watch
	keptFor            = 300 * time.Millisecond // for the process that was woken before
	idleFor            = time.Minute            // after which a session without leases is closed
	maxRetries         = 5                      // of a transaction whose base or floor has been raised since it was read
	maxAdoptions       = 50                     // of one lease by other sessions
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
	// Members is how many voting servers the ensemble must have at least; with
	// fewer, such as a standalone server, requests are refused. 0 means no
	// minimum.
	Members int
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
	lost     func(guard.Claim, error)
	closed   bool
	closing  sync.WaitGroup
}

var (
	_ driver.Issuer = (*Issuer)(nil)
	_ driver.Floors = (*Issuer)(nil)
	_ driver.Epochs = (*Issuer)(nil)
	_ driver.Losses = (*Issuer)(nil)
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
	if i.opts.ACL == nil {
		i.opts.ACL = zk.WorldACL(zk.PermAll)
	}
	switch {
	case len(servers) == 0:
		return nil, guard.Missing("servers")
	case i.opts.TickTime < 10*time.Millisecond || i.opts.TickTime > time.Minute || i.opts.TickTime%time.Millisecond != 0:
		return nil, guard.Invalid("Options.TickTime", i.opts.TickTime.String(), "must be whole milliseconds, 10 ms to a minute")
	case !strings.HasPrefix(i.opts.Root, "/") || strings.HasSuffix(i.opts.Root, "/"):
		return nil, guard.Invalid("Options.Root", i.opts.Root, "must begin with a slash and not end with one")
	case i.opts.Members < 0:
		return nil, guard.Invalid("Options.Members", strconv.Itoa(i.opts.Members), "must not be negative")
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

// OnLoss registers f to be called for leases of a session that the servers
// ended.
func (i *Issuer) OnLoss(f func(claim guard.Claim, cause error)) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.lost = f
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
		s.end(nil)
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

func (i *Issuer) create(path string, value []byte, flags int32) *zk.CreateRequest {
	return &zk.CreateRequest{Path: path, Data: value, Acl: i.opts.ACL, Flags: flags}
}

// Acquire grants or refuses.
func (i *Issuer) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	s, err := i.session(ctx, r.TTL)
	if err != nil {
		return driver.Grant{}, unsent("acquire", r.Claim(), err)
	}
	if r.Waiting { // most likely the lease is held: a read, which writes nothing
		h, err := s.current(ctx, r.Resource)
		if err != nil {
			return driver.Grant{}, unavailable("acquire", r.Claim(), err)
		}
		if h != nil && h.ID != r.LeaseID {
			return driver.Grant{}, heldBy(r.Resource, h)
		}
	}
	var floor stored // most resources have none; a failed transaction shows it
	for range maxRetries {
		base := i.knownBase()
		value := held{Version: 1, ID: r.LeaseID, Owner: r.Owner, Metadata: r.Metadata, Base: max(base.value, floor.value), TTL: r.TTL.Milliseconds()}
		text, err := json.Marshal(value)
		if err != nil {
			return driver.Grant{}, unavailable("acquire", r.Claim(), err)
		}
		answers, which, err := s.multi(ctx,
			s.touch(),
			i.create(i.idPath(r.Resource, r.LeaseID), nil, zk.FlagEphemeral),
			i.create(i.lockPath(r.Resource), text, zk.FlagEphemeral),
			&zk.CheckVersionRequest{Path: i.container(r.Resource), Version: floor.version},
			&zk.CheckVersionRequest{Path: i.basePath(), Version: base.version})
		switch {
		case err == nil:
			return i.granted(ctx, s, r, value, answers[0].Stat)
		case which < 0:
			err = failed("acquire", r.Claim(), err)
			if errors.Is(err, guard.ErrOutcomeUnknown) {
				s.doubt(r.Claim(), 0)
			}
			return driver.Grant{}, err
		case which == 1 && errors.Is(err, zk.ErrNoNode):
			err = s.makeContainer(ctx, r.Resource)
		case which == 1 && errors.Is(err, zk.ErrNodeExists):
			grant, again, err := i.own(ctx, s, r)
			if !again {
				return grant, err
			}
			continue
		case which == 2 && errors.Is(err, zk.ErrNodeExists):
			h, err := s.holder(ctx, r.Resource)
			if err != nil {
				return driver.Grant{}, unavailable("acquire", r.Claim(), err)
			}
			return driver.Grant{}, heldBy(r.Resource, h)
		case which == 3 && errors.Is(err, zk.ErrBadVersion):
			floor, err = s.floor(ctx, r.Resource)
		case which == 4 && (errors.Is(err, zk.ErrBadVersion) || errors.Is(err, zk.ErrNoNode)):
			err = i.learnBase(ctx, s)
		}
		if err != nil {
			return driver.Grant{}, unsent("acquire", r.Claim(), err)
		}
	}
	return driver.Grant{}, guard.Unavailable("acquire", r.Claim(), errors.New("the base or the floor kept changing"))
}

// granted makes a grant from a transaction that was carried out.
func (i *Issuer) granted(ctx context.Context, s *session, r driver.Request, value held, stat *zk.Stat) (driver.Grant, error) {
	claim := guard.Claim{Resource: r.Resource, LeaseID: r.LeaseID, Token: guard.Token(value.Base + stat.Mzxid)}
	err := s.forward(stat.Mzxid)
	if err == nil && value.Base > int64(guard.MaxToken)-stat.Mzxid {
		err = guard.Unavailable("acquire", r.Claim(), errors.New("the token space is exhausted"))
	}
	var from time.Duration
	if err == nil {
		var ok bool
		if from, ok = s.keep(claim, 0); !ok { // what an earlier request of this lease ID may have left
			err = guard.Unavailable("acquire", r.Claim(), errEnding)
		}
	}
	if err != nil {
		s.remove(ctx, claim, 0)
		return driver.Grant{}, err
	}
	if r.Waiting {
		i.leaveUnwatched(r.Resource)
	}
	return driver.Grant{Token: claim.Token, AcquiredAt: time.UnixMilli(stat.Mtime), From: from, TTL: s.timeout}, nil
}

// own is the result of an acquire whose lease ID exists already: its lease runs, or it
// is spent. again says that neither is the case any more.
func (i *Issuer) own(ctx context.Context, s *session, r driver.Request) (grant driver.Grant, again bool, err error) {
	if !s.postpone(ctx, r.Claim()) {
		return grant, false, guard.Unavailable("acquire", r.Claim(), errEnding)
	}
	h, err := s.holder(ctx, r.Resource)
	if err != nil {
		return grant, false, unavailable("acquire", r.Claim(), err)
	}
	if h != nil && h.ID == r.LeaseID {
		if h.Owner != r.Owner {
			return grant, false, driver.LeaseIDInUse(r.LeaseID, h.Owner)
		}
		from, ok, err := s.take(ctx, r.Resource, h)
		if err != nil || !ok {
			return grant, err == nil, err
		}
		return driver.Grant{Token: h.Token, AcquiredAt: time.UnixMilli(h.At), From: from, TTL: s.timeout}, false, nil
	}
	id, err := s.stat(ctx, i.idPath(r.Resource, r.LeaseID))
	switch {
	case err != nil:
		return grant, false, unavailable("acquire", r.Claim(), err)
	case id != nil && id.EphemeralOwner == 0:
		return grant, false, driver.ErrLeaseIDSpent
	}
	return grant, true, nil
}

// Renew writes once for all leases of a session, and checks with the same
// transaction that they are there and its own.
func (i *Issuer) Renew(ctx context.Context, renewals []driver.Renewal, results []driver.Renewed) {
	classes := map[time.Duration][]int{}
	for n, r := range renewals {
		classes[r.TTL] = append(classes[r.TTL], n)
	}
	var wg sync.WaitGroup
	for ttl, items := range classes {
		wg.Go(func() { i.renew(ctx, ttl, items, renewals, results) })
	}
	wg.Wait()
}

func (i *Issuer) renew(ctx context.Context, ttl time.Duration, items []int, renewals []driver.Renewal, results []driver.Renewed) {
	s, err := i.session(ctx, ttl)
	if err != nil {
		for _, n := range items {
			results[n] = driver.Renewed{Err: unavailable("renew", renewals[n].Claim, err)}
		}
		return
	}
	var mine, others []int // by whether this session has the lease, as far as is known
	for _, n := range items {
		switch known, over := s.knows(renewals[n].Claim); {
		case over:
			results[n] = driver.Renewed{State: driver.Over}
		case known:
			mine = append(mine, n)
		default:
			others = append(others, n)
		}
	}
	for len(mine) > 0 {
		ops := []any{s.touch()}
		for _, n := range mine {
			claim := renewals[n].Claim
			ops = append(ops, &zk.CheckVersionRequest{Path: i.idPath(claim.Resource, claim.LeaseID), Version: s.version(claim)})
		}
		_, which, err := s.multi(ctx, ops...)
		if err != nil && which < 1 {
			for _, n := range mine {
				results[n] = driver.Renewed{Err: failed("renew", renewals[n].Claim, err)}
			}
			break
		}
		if err != nil {
			n := mine[which-1]
			mine = append(mine[:which-1:which-1], mine[which:]...)
			switch {
			case errors.Is(err, zk.ErrNoNode):
				s.forget(renewals[n].Claim)
				results[n] = driver.Renewed{State: driver.Over}
			case errors.Is(err, zk.ErrBadVersion): // another session has it now
				s.forget(renewals[n].Claim)
				others = append(others, n)
			default:
				results[n] = driver.Renewed{Err: unavailable("renew", renewals[n].Claim, err)}
			}
			continue
		}
		for _, n := range mine {
			results[n] = driver.Renewed{State: driver.Over}
			if from, ok := s.extend(renewals[n].Claim); ok {
				results[n] = driver.Renewed{State: driver.Extended, From: from, TTL: s.timeout}
			}
		}
		break
	}
	if len(others) > 0 {
		err = s.catchUp(ctx)
	}
	for _, n := range others {
		if err != nil {
			results[n] = driver.Renewed{Err: unavailable("renew", renewals[n].Claim, err)}
			continue
		}
		results[n] = s.renewOther(ctx, renewals[n].Claim)
	}
}

// renewOther renews a lease of another session by taking it over. The session has
// caught up.
func (s *session) renewOther(ctx context.Context, claim guard.Claim) driver.Renewed {
	if !s.postpone(ctx, claim) {
		return driver.Renewed{State: driver.Over}
	}
	h, err := s.holder(ctx, claim.Resource)
	if err != nil {
		return driver.Renewed{Err: unavailable("renew", claim, err)}
	}
	if h == nil || h.ID != claim.LeaseID || h.Token != claim.Token {
		return driver.Renewed{State: driver.Over}
	}
	from, ok, err := s.take(ctx, claim.Resource, h)
	switch {
	case err != nil:
		return driver.Renewed{Err: err}
	case !ok:
		return driver.Renewed{Err: guard.Unavailable("renew", claim, errors.New("another session took it at the same time"))}
	}
	return driver.Renewed{State: driver.Extended, From: from, TTL: s.timeout}
}

// take moves a running lease to this session: it deletes its two nodes and
// creates them again. The version of the lease ID's node counts how often that
// was done, so that the session that had the lease before notices. ok is false
// if the lease has changed since.
//
// The later end wins: a lease of a longer TTL moves to a session of that TTL, since
// one holder may rely on it.
func (s *session) take(ctx context.Context, resource string, h *held) (from time.Duration, ok bool, err error) {
	claim := guard.Claim{Resource: resource, Token: h.Token, LeaseID: h.ID}
	if ttl := time.Duration(h.TTL) * time.Millisecond; ttl > s.timeout {
		longer, err := s.i.session(ctx, ttl)
		switch {
		case err != nil:
			return 0, false, unsent("acquire", claim, err)
		case longer.timeout < ttl:
			return 0, false, guard.Unavailable("acquire", claim, errors.New("the servers allow no session as long as the lease's"))
		case !longer.postpone(ctx, claim):
			return 0, false, guard.Unavailable("acquire", claim, errEnding)
		}
		return longer.take(ctx, resource, h)
	}
	path := s.i.idPath(resource, h.ID)
	id, err := s.stat(ctx, path)
	if err != nil {
		return 0, false, unavailable("acquire", claim, err)
	}
	if id == nil {
		return 0, false, nil
	}
	if h.session == s.number() {
		from, ok := s.keep(claim, id.Version) // the transaction that found it was a write
		return from, ok, nil
	}
	if id.Version >= maxAdoptions {
		return 0, false, guard.Unavailable("acquire", claim, errors.New("the lease moved between sessions too often"))
	}
	value := *h
	value.TTL = s.timeout.Milliseconds()
	text, err := json.Marshal(value)
	if err != nil {
		return 0, false, unavailable("acquire", claim, err)
	}
	ops := []any{s.touch(), &zk.DeleteRequest{Path: path, Version: id.Version}, s.i.create(path, nil, zk.FlagEphemeral)}
	for range id.Version + 1 {
		ops = append(ops, &zk.SetDataRequest{Path: path, Version: -1})
	}
	ops = append(ops, &zk.DeleteRequest{Path: s.i.lockPath(resource), Version: -1}, s.i.create(s.i.lockPath(resource), text, zk.FlagEphemeral))
	_, which, err := s.multi(ctx, ops...)
	switch {
	case err == nil:
		from, ok := s.keep(claim, id.Version+1)
		return from, ok, nil
	case which < 0:
		err = failed("acquire", claim, err)
		if errors.Is(err, guard.ErrOutcomeUnknown) {
			s.doubt(claim, id.Version+1)
		}
		return 0, false, err
	case which > 0 && (errors.Is(err, zk.ErrNoNode) || errors.Is(err, zk.ErrBadVersion)):
		return 0, false, nil
	}
	return 0, false, unavailable("acquire", claim, err)
}
