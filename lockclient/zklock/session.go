package zklock

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

// session is a ZooKeeper session and what is known about its state.
type session struct {
	i       *Issuer
	timeout time.Duration
	conn    *zk.Conn
	beat    string        // a node of this session only: without it nothing is granted
	ready   chan struct{} // closed when err is set, or the session can be used
	err     error
	done    chan struct{} // closed when it is over

	// Guarded by Issuer.mu.
	id         int64
	granted    time.Duration // the timeout that the servers granted
	last       error         // why there is no connection
	up         chan struct{} // closed while there is a connection
	connected  bool
	over       bool
	before     int64 // the highest zxid seen when it began
	safe       time.Duration
	writes     []write
	leases     map[guard.Claim]*lease
	used       time.Duration
	lineLength int // places in the queue
	watched    map[string]*watched
}

// write is a write that the leader has carried out.
type write struct{ sent, answered time.Duration }

// lease is a lease that this session has. One under a claim without a token is a
// request whose outcome is unknown, and is deleted like one that runs out: a
// session that lives on would keep a lease that nobody holds.
type lease struct {
	version int32 // of its ID's node
	expires time.Duration
	ending  bool // it ran out and is being deleted
}

var (
	errOver   = errors.New("the session is over")
	errEnding = errors.New("the lease ran out and is being deleted")
)

// session returns the session with this timeout, or begins it.
func (i *Issuer) session(ctx context.Context, timeout time.Duration) (*session, error) {
	i.mu.Lock()
	s := i.sessions[timeout]
	if i.closed {
		i.mu.Unlock()
		return nil, notSent{errors.New("the issuer is closed")}
	}
	if s == nil {
		s = &session{i: i, timeout: timeout, beat: i.opts.Root + "/beat-" + rand.Text(), ready: make(chan struct{}), done: make(chan struct{}),
			up: make(chan struct{}), leases: map[guard.Claim]*lease{}, watched: map[string]*watched{}, before: i.seen}
		i.sessions[timeout] = s
		i.closing.Go(s.run)
	}
	s.used = driver.Now()
	i.mu.Unlock()
	select {
	case <-s.ready:
		return s, s.err
	case <-ctx.Done():
		i.mu.Lock()
		defer i.mu.Unlock()
		if s.last != nil {
			return nil, notSent{fmt.Errorf("%w; there is no session: %w", context.Cause(ctx), s.last)}
		}
		return nil, notSent{context.Cause(ctx)}
	}
}

// run begins the session, writes once a tick, and ends leases that are not
// renewed.
func (s *session) run() {
	defer s.end(nil)
	if s.err = s.begin(); s.err != nil {
		s.end(nil) // first, so that the next request begins another
		close(s.ready)
		return
	}
	close(s.ready)
	tick := s.i.opts.TickTime
	timer := time.NewTimer(tick)
	defer timer.Stop()
	for {
		select {
		case <-s.done:
			return
		case <-timer.C:
		}
		due, next, idle := s.look(driver.Now())
		if idle {
			return
		}
		ctx, cancel := context.WithTimeout(s.i.ctx, tick)
		for _, d := range due {
			s.remove(ctx, d.claim, d.version)
		}
		s.multi(ctx, s.touch())
		cancel()
		timer.Reset(max(time.Millisecond, min(tick, next-driver.Now())))
	}
}

func (s *session) begin() error {
	ctx, cancel := context.WithTimeout(s.i.ctx, max(30*time.Second, s.timeout))
	defer cancel()
	conn, _, err := zk.Connect(s.i.servers, s.timeout, zk.WithDialer(s.dial), zk.WithEventCallback(s.event), zk.WithLogger(s))
	if err != nil {
		return notSent{err}
	}
	s.i.mu.Lock()
	s.conn = conn
	s.i.mu.Unlock()
	if err := s.wait(ctx); err != nil {
		return err
	}
	s.i.mu.Lock()
	granted := s.granted
	s.i.mu.Unlock()
	if granted != s.timeout {
		return notSent{fmt.Errorf("a session of %v was asked for and the servers grant %v: their tickTime is not Options.TickTime (%v), or they have bounds of their own (minSessionTimeout, maxSessionTimeout)",
			s.timeout, granted, s.i.opts.TickTime)}
	}
	if s.i.opts.Scheme != "" {
		if _, err := call(ctx, s, func(c *zk.Conn) (struct{}, error) {
			return struct{}{}, c.AddAuth(s.i.opts.Scheme, []byte(s.i.opts.Auth))
		}); err != nil {
			return notSent{err}
		}
	}
	if err := s.checkMembers(ctx); err != nil {
		return notSent{err}
	}
	if err := s.i.learnBase(ctx, s); err != nil {
		return notSent{err}
	}
	_, err = call(ctx, s, func(c *zk.Conn) (string, error) { return c.Create(s.beat, nil, zk.FlagEphemeral, s.i.opts.ACL) })
	if err != nil {
		return notSent{err}
	}
	return nil
}

// end ends the session, once; cause is why the servers ended it, or nil.
func (s *session) end(cause error) {
	i := s.i
	i.mu.Lock()
	if s.over {
		i.mu.Unlock()
		return
	}
	s.over = true
	close(s.done)
	if i.sessions[s.timeout] == s {
		delete(i.sessions, s.timeout)
	}
	lost, conn := i.lost, s.conn
	var claims []guard.Claim
	for claim, l := range s.leases {
		if !l.ending && claim.Token != guard.NoToken {
			claims = append(claims, claim)
		}
	}
	for resource, p := range i.places {
		if p.s == s {
			delete(i.places, resource)
		}
	}
	if conn != nil { // below the mutex, so that Issuer.Close, which ends all sessions first, waits for it
		i.closing.Go(conn.Close) // which waits for a response, for at most a second
	}
	i.mu.Unlock()
	if cause != nil && lost != nil {
		for _, claim := range claims {
			lost(claim, cause)
		}
	}
}

// look returns the leases that have run out, when the next one does, and whether
// nobody needs the session.
func (s *session) look(now time.Duration) (due []expired, next time.Duration, idle bool) {
	s.i.mu.Lock()
	defer s.i.mu.Unlock()
	next = now + s.i.opts.TickTime
	for claim, l := range s.leases {
		if l.expires > now {
			next = min(next, l.expires)
			continue
		}
		l.ending = true
		due = append(due, expired{claim, l.version})
	}
	idle = len(s.leases) == 0 && s.lineLength == 0 && len(s.watched) == 0 && now-s.used > idleFor
	if idle && s.i.sessions[s.timeout] == s {
		delete(s.i.sessions, s.timeout) // before anybody gets it
	}
	return due, next, idle
}

type expired struct {
	claim   guard.Claim
	version int32
}

// keep records that the session has a lease whose ID's node has this version,
// and returns the time from which its TTL counts; false if the lease ID is being
// deleted.
func (s *session) keep(claim guard.Claim, version int32) (from time.Duration, ok bool) {
	s.i.mu.Lock()
	defer s.i.mu.Unlock()
	return s.keepLocked(claim, version)
}

func (s *session) keepLocked(claim guard.Claim, version int32) (from time.Duration, ok bool) {
	unknown := guard.Claim{Resource: claim.Resource, LeaseID: claim.LeaseID}
	for _, c := range []guard.Claim{claim, unknown} {
		if l := s.leases[c]; l != nil && l.ending {
			return 0, false
		}
	}
	s.leases[claim] = &lease{version: version, expires: s.safe + s.timeout}
	delete(s.leases, unknown) // it is known now
	return s.safe, true
}

// extend is keep for a lease that the session had when its renewal was sent; false
// if that has been deleted since, or is about to be.
func (s *session) extend(claim guard.Claim) (from time.Duration, ok bool) {
	s.i.mu.Lock()
	defer s.i.mu.Unlock()
	l := s.leases[claim]
	if l == nil {
		return 0, false
	}
	return s.keepLocked(claim, l.version)
}

// doubt records that a request may have given this session a lease whose ID's
// node would have this version. Perhaps nobody asks for it again.
func (s *session) doubt(claim guard.Claim, version int32) {
	claim.Token = guard.NoToken
	s.i.mu.Lock()
	defer s.i.mu.Unlock()
	if l := s.leases[claim]; l == nil || !l.ending {
		s.leases[claim] = &lease{version: version, expires: driver.Now() + s.timeout}
	}
}

// postpone keeps the session from deleting what it has under a lease ID until a
// TTL after ctx, for a request that may take it. It returns false if the
// deletion has begun.
func (s *session) postpone(ctx context.Context, claim guard.Claim) bool {
	until := driver.Now() + s.timeout
	if end, ok := ctx.Deadline(); ok {
		until += time.Until(end)
	}
	s.i.mu.Lock()
	defer s.i.mu.Unlock()
	for c, l := range s.leases {
		if c.Resource == claim.Resource && c.LeaseID == claim.LeaseID {
			if l.ending {
				return false
			}
			l.expires = max(l.expires, until)
		}
	}
	return true
}

func (s *session) forget(claim guard.Claim) {
	s.i.mu.Lock()
	defer s.i.mu.Unlock()
	delete(s.leases, claim)
}

// knows reports whether the session has the lease, and whether it has run out.
func (s *session) knows(claim guard.Claim) (known, over bool) {
	s.i.mu.Lock()
	defer s.i.mu.Unlock()
	l := s.leases[claim]
	return l != nil && !l.ending, l != nil && l.ending
}

func (s *session) version(claim guard.Claim) int32 {
	s.i.mu.Lock()
	defer s.i.mu.Unlock()
	if l := s.leases[claim]; l != nil {
		return l.version
	}
	return -2 // no node's
}

func (s *session) number() int64 {
	s.i.mu.Lock()
	defer s.i.mu.Unlock()
	return s.id
}

// carriedOut records a write that the leader has carried out. It proves that the
// leader knew the session to be alive when an earlier write was sent, if that
// one was carried out a tick before this one was sent: the follower's pings, on
// the same path and twice a tick, have reported it.
func (s *session) carriedOut(sent, at time.Duration) {
	s.i.mu.Lock()
	defer s.i.mu.Unlock()
	tick := s.i.opts.TickTime
	for n := len(s.writes) - 1; n >= 0; n-- {
		if s.writes[n].answered+tick <= sent {
			s.safe = max(s.safe, s.writes[n].sent)
			s.writes = append(s.writes[:0], s.writes[n:]...)
			break
		}
	}
	if n := len(s.writes); n == 0 || at-s.writes[n-1].answered > tick/8 {
		s.writes = append(s.writes, write{sent, at})
	}
}

// forward records a write's zxid and refuses one that went back.
func (s *session) forward(zxid int64) error {
	s.i.mu.Lock()
	defer s.i.mu.Unlock()
	if zxid <= s.before {
		return fmt.Errorf("fencepost: %w: the zxid was %#x and is %#x, so the ensemble was restored; call RaiseEpoch, then restart the workers",
			guard.ErrMarkAhead, s.before, zxid)
	}
	s.i.seen = max(s.i.seen, zxid)
	return nil
}

// event is called by the client and must not block.
func (s *session) event(e zk.Event) {
	if e.Type != zk.EventSession {
		return
	}
	if e.State == zk.StateExpired {
		go s.end(zk.ErrSessionExpired)
		return
	}
	s.i.mu.Lock()
	defer s.i.mu.Unlock()
	switch e.State {
	case zk.StateHasSession:
		if !s.connected {
			s.connected = true
			close(s.up)
		}
	case zk.StateDisconnected, zk.StateConnecting, zk.StateConnected:
		if s.connected {
			s.connected = false
			s.up = make(chan struct{})
		}
	}
}

// Printf is the client's logger: only there it says why there is no connection.
func (s *session) Printf(format string, args ...any) {
	for _, arg := range args {
		if err, ok := arg.(error); ok && err != nil {
			s.i.mu.Lock()
			s.last = err
			s.i.mu.Unlock()
		}
	}
}

// dial makes a connection on which the server's first response is read along.
func (s *session) dial(network, address string, timeout time.Duration) (net.Conn, error) {
	dial := s.i.opts.Dialer
	if dial == nil {
		dial = net.DialTimeout
	}
	began := driver.Now()
	conn, err := dial(network, address, timeout)
	if err != nil {
		return nil, err
	}
	return &wire{Conn: conn, s: s, began: began}, nil
}

// wire reads the session's timeout from the server's first response, since the
// client does not expose it: a length, a version, the timeout in ms, the
// session.
type wire struct {
	net.Conn
	s     *session
	began time.Duration
	head  []byte
}

func (w *wire) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	if need := 20 - len(w.head); need > 0 {
		w.head = append(w.head, p[:min(n, need)]...)
		if len(w.head) == 20 {
			w.s.opened(w.began, time.Duration(int32(binary.BigEndian.Uint32(w.head[8:])))*time.Millisecond, int64(binary.BigEndian.Uint64(w.head[12:])))
		}
	}
	return n, err
}

// opened records that the ensemble has begun the session. That a server found
// it alive at a reconnection proves nothing: a leader that was stopped and
// deposed says so too.
func (s *session) opened(began, granted time.Duration, id int64) {
	s.i.mu.Lock()
	defer s.i.mu.Unlock()
	if s.id == 0 {
		s.id, s.granted, s.safe = id, granted, began
	}
}

// wait returns when there is a connection: a request passed to the client without
// one might be sent at any later time.
func (s *session) wait(ctx context.Context) error {
	for {
		s.i.mu.Lock()
		connected, up, last := s.connected, s.up, s.last
		if s.over {
			s.i.mu.Unlock()
			return notSent{errOver}
		}
		s.i.mu.Unlock()
		if connected {
			return nil
		}
		select {
		case <-up:
		case <-s.done:
		case <-ctx.Done():
			if last != nil {
				return notSent{fmt.Errorf("%w; there is no connection: %w", context.Cause(ctx), last)}
			}
			return notSent{context.Cause(ctx)}
		}
	}
}

// call sends one request. It returns when ctx ends: the client has no contexts.
func call[T any](ctx context.Context, s *session, f func(*zk.Conn) (T, error)) (T, error) {
	var none T
	if err := s.wait(ctx); err != nil {
		return none, err
	}
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := f(s.conn)
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		return none, context.Cause(ctx)
	}
}

// multi carries out a transaction. If it was refused, which is the operation
// that was; if it failed as a whole, which is -1.
func (s *session) multi(ctx context.Context, ops ...any) (responses []zk.MultiResponse, which int, err error) {
	sent := driver.Now()
	responses, err = call(ctx, s, func(c *zk.Conn) ([]zk.MultiResponse, error) { return c.Multi(ops...) })
	if len(responses) == len(ops) { // the leader has carried it out
		s.carriedOut(sent, driver.Now())
		for n, a := range responses {
			if a.Error == nil {
				continue
			}
			if set, ok := ops[n].(*zk.SetDataRequest); ok && set.Path == s.beat && errors.Is(a.Error, zk.ErrNoNode) {
				s.end(zk.ErrSessionExpired) // or somebody deleted it
				return nil, -1, zk.ErrSessionExpired
			}
			return nil, n, a.Error
		}
	}
	if err == nil && len(responses) != len(ops) {
		err = errors.New("the servers responded to other operations")
	}
	return responses, -1, err
}

// touch is the operation that shows that the session lives and returns the zxid
// of its transaction.
func (s *session) touch() *zk.SetDataRequest {
	return &zk.SetDataRequest{Path: s.beat, Version: -1}
}

type node struct {
	value []byte
	stat  *zk.Stat
}

// get reads a node; nil if there is none.
func (s *session) get(ctx context.Context, path string) (*node, error) {
	n, err := call(ctx, s, func(c *zk.Conn) (*node, error) {
		value, stat, err := c.Get(path)
		return &node{value, stat}, err
	})
	if errors.Is(err, zk.ErrNoNode) {
		return nil, nil
	}
	return n, err
}

// stat reads a node's metadata; nil if there is no such node.
func (s *session) stat(ctx context.Context, path string) (*zk.Stat, error) {
	return call(ctx, s, func(c *zk.Conn) (*zk.Stat, error) {
		ok, stat, err := c.Exists(path)
		if err != nil || !ok {
			return nil, err
		}
		return stat, nil
	})
}

func (s *session) children(ctx context.Context, resource string) ([]string, error) {
	all, err := call(ctx, s, func(c *zk.Conn) ([]string, error) {
		all, _, err := c.Children(s.i.container(resource))
		return all, err
	})
	if errors.Is(err, zk.ErrNoNode) {
		return nil, nil
	}
	return all, err
}

// time returns the servers' clock, in ms since 1970.
func (s *session) time(ctx context.Context) (int64, error) {
	responses, _, err := s.multi(ctx, s.touch())
	if err != nil {
		return 0, err
	}
	return responses[0].Stat.Mtime, nil
}

func (s *session) makeRoot(ctx context.Context) error {
	_, err := call(ctx, s, func(c *zk.Conn) (string, error) {
		return c.Create(s.i.opts.Root, nil, zk.FlagPersistent, s.i.opts.ACL)
	})
	if errors.Is(err, zk.ErrNodeExists) {
		return nil
	}
	return err
}

func (s *session) makeContainer(ctx context.Context, resource string) error {
	_, err := call(ctx, s, func(c *zk.Conn) (string, error) {
		return c.CreateContainer(s.i.container(resource), nil, zk.FlagContainer, s.i.opts.ACL)
	})
	if errors.Is(err, zk.ErrNodeExists) {
		return nil
	}
	return err
}
