package zklock

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/sequence"
)

// session is a ZooKeeper session and what is known about its state.
type session struct {
	i       *Issuer
	timeout time.Duration
	beat    string        // a node of this session only: without it nothing is granted
	ready   chan struct{} // closed when err is set, or the session can be used
	err     error
	id      int64         // once it is ready
	done    chan struct{} // closed when it is over

	// Guarded by Issuer.mu.
	conn      *zk.Conn
	granted   time.Duration // the timeout that the servers granted; 0 before that
	last      error         // why there is no connection
	up        chan struct{} // closed while there is a connection
	connected bool
	over      bool
	before    int64         // the highest zxid seen when it began
	safe      time.Duration // the leader knew it to be alive by then
	writes    []write
	leases    map[guard.Claim]*lease
	used      time.Duration
	watched   map[string]chan struct{} // by node; closed when it has changed, or that is not known
}

// write is a write that the leader has carried out.
type write struct{ sent, carriedOut time.Duration }

// session returns the session with this timeout, or begins it.
func (i *Issuer) session(ctx context.Context, timeout time.Duration) (*session, error) {
	i.mu.Lock()
	s := i.sessions[timeout]
	if i.closed {
		i.mu.Unlock()
		return nil, errClosed
	}
	if s == nil {
		s = &session{i: i, timeout: timeout, beat: i.opts.Root + "/beat-" + rand.Text(), ready: make(chan struct{}),
			done: make(chan struct{}), up: make(chan struct{}), leases: map[guard.Claim]*lease{},
			watched: map[string]chan struct{}{}, before: i.seen}
		i.sessions[timeout] = s
		i.closing.Go(s.run)
	}
	s.used = driver.Now()
	i.mu.Unlock()
	select {
	case <-s.ready:
		return s, s.err
	case <-ctx.Done():
		return nil, s.unconnected(ctx)
	}
}

// unconnected is the error of a request whose context has ended before it was sent.
func (s *session) unconnected(ctx context.Context) error {
	s.i.mu.Lock()
	defer s.i.mu.Unlock()
	err := context.Cause(ctx)
	if s.last != nil {
		err = fmt.Errorf("%w; there is no connection: %w", err, s.last)
	}
	return sequence.Unwritten{Err: err}
}

// run begins the session, writes once a tick, and ends leases that are not
// renewed.
func (s *session) run() {
	defer s.end()
	if err := s.begin(); err != nil {
		s.err = sequence.Unwritten{Err: err}
		s.end() // first, so that the next request begins another
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
		ended, next, idle := s.due()
		if idle {
			return
		}
		ctx, cancel := context.WithTimeout(s.i.ctx, tick)
		for _, claim := range ended {
			s.expire(ctx, claim)
		}
		s.multi(ctx, s.touch())
		cancel()
		timer.Reset(max(time.Millisecond, min(tick, next-driver.Now())))
	}
}

func (s *session) begin() error {
	ctx, cancel := context.WithTimeout(s.i.ctx, max(30*time.Second, s.timeout))
	defer cancel()
	opts := &s.i.opts
	conn, _, err := zk.Connect(s.i.servers, s.timeout, zk.WithDialer(opts.Dialer), zk.WithEventCallback(s.event),
		zk.WithLogger(s), zk.WithLogInfo(true))
	if err != nil {
		return err
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
		return fmt.Errorf("a session of %v was asked for and the servers grant %v: their tickTime is not Options.TickTime (%v), "+
			"or they have bounds of their own (minSessionTimeout, maxSessionTimeout)", s.timeout, granted, opts.TickTime)
	}
	if opts.Scheme != "" {
		err := do(ctx, s, func(c *zk.Conn) error { return c.AddAuth(opts.Scheme, []byte(opts.Auth)) })
		if err != nil {
			return err
		}
	}
	if err := s.i.learnBase(ctx, s); err != nil {
		return err
	}
	responses, _, err := s.multi(ctx, s.i.create(s.beat, nil, zk.FlagEphemeral), s.touch())
	if err == nil {
		s.id = responses[1].Stat.EphemeralOwner
	}
	return err
}

// end ends the session, once.
func (s *session) end() {
	i := s.i
	i.mu.Lock()
	defer i.mu.Unlock()
	if s.over {
		return
	}
	s.over = true
	close(s.done)
	if i.sessions[s.timeout] == s {
		delete(i.sessions, s.timeout)
	}
	for resource, p := range i.places {
		if p.s == s {
			delete(i.places, resource)
		}
	}
	if s.conn != nil { // below the mutex, so that Issuer.Close, which ends all sessions first, waits for it
		i.closing.Go(s.conn.Close) // which waits for a response, for at most a second
	}
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
		if s.writes[n].carriedOut+tick <= sent {
			s.safe = max(s.safe, s.writes[n].sent)
			s.writes = append(s.writes[:0], s.writes[n:]...)
			break
		}
	}
	if n := len(s.writes); n == 0 || at-s.writes[n-1].carriedOut > tick/8 {
		s.writes = append(s.writes, write{sent, at})
	}
}

// forward records a write's zxid and refuses one that went back.
func (s *session) forward(zxid int64) error {
	s.i.mu.Lock()
	defer s.i.mu.Unlock()
	if zxid <= s.before {
		return sequence.WentBack("the zxid was %#x and is %#x, so the ensemble was restored", s.before, zxid)
	}
	s.i.seen = max(s.i.seen, zxid)
	return nil
}

// event is called by the client and must not block.
func (s *session) event(e zk.Event) {
	if e.Type != zk.EventSession {
		return
	}
	s.i.mu.Lock()
	defer s.i.mu.Unlock()
	switch {
	case e.State == zk.StateExpired:
		go s.end()
	case e.State == zk.StateConnecting && s.granted == 0:
		s.safe = driver.Now() // before the session is asked for
	case e.State == zk.StateDisconnected && s.connected:
		s.connected = false
		s.up = make(chan struct{})
	}
}

// Printf is the client's logger. Only there it says which timeout the servers have
// granted, and why there is no connection. A client that words it otherwise has no
// connection here, and nothing is granted.
//
// That a server found the session alive at a reconnection proves nothing: a leader that
// was stopped and deposed says so too.
func (s *session) Printf(format string, args ...any) {
	s.i.mu.Lock()
	defer s.i.mu.Unlock()
	for _, arg := range args {
		if err, ok := arg.(error); ok {
			s.last = err
		}
	}
	if strings.HasPrefix(format, "authenticated: ") && len(args) == 2 && !s.connected {
		if ms, ok := args[1].(int32); ok && s.granted == 0 {
			s.granted = time.Duration(ms) * time.Millisecond
		}
		s.connected = true
		close(s.up)
	}
}

// wait returns when there is a connection: a request passed to the client without
// one might be sent at any later time.
func (s *session) wait(ctx context.Context) error {
	for {
		s.i.mu.Lock()
		over, connected, up := s.over, s.connected, s.up
		s.i.mu.Unlock()
		switch {
		case over:
			return errOver
		case connected:
			return nil
		}
		select {
		case <-up:
		case <-s.done:
		case <-ctx.Done():
			return s.unconnected(ctx)
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

// do is call for a request without a result.
func do(ctx context.Context, s *session, f func(*zk.Conn) error) error {
	_, err := call(ctx, s, func(c *zk.Conn) (struct{}, error) { return struct{}{}, f(c) })
	return err
}

// multi carries out a transaction. If it was refused, which is the operation
// that was, and nothing was written; if it failed as a whole, which is -1.
func (s *session) multi(ctx context.Context, ops ...any) (responses []zk.MultiResponse, which int, err error) {
	sent := driver.Now()
	responses, err = call(ctx, s, func(c *zk.Conn) ([]zk.MultiResponse, error) { return c.Multi(ops...) })
	if len(responses) == len(ops) { // the leader has carried it out
		s.carriedOut(sent, driver.Now())
		for n, r := range responses {
			if r.Error == nil {
				continue
			}
			if set, ok := ops[n].(*zk.SetDataRequest); ok && set.Path == s.beat && errors.Is(r.Error, zk.ErrNoNode) {
				s.end() // it is over, or somebody deleted its node
				return nil, -1, zk.ErrSessionExpired
			}
			return nil, n, sequence.Unwritten{Err: r.Error}
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

// read is call for a request that only reads; the zero value if there is no such node.
func read[T any](ctx context.Context, s *session, f func(*zk.Conn) (T, error)) (T, error) {
	value, err := call(ctx, s, f)
	if err == nil {
		return value, nil
	}
	var none T
	if errors.Is(err, zk.ErrNoNode) {
		return none, nil
	}
	return none, sequence.Unwritten{Err: err}
}

type node struct {
	value []byte
	stat  *zk.Stat
}

// get reads a node; nil if there is none.
func (s *session) get(ctx context.Context, path string) (*node, error) {
	return read(ctx, s, func(c *zk.Conn) (*node, error) {
		value, stat, err := c.Get(path)
		return &node{value, stat}, err
	})
}

// stat reads a node's metadata; nil if there is no such node.
func (s *session) stat(ctx context.Context, path string) (*zk.Stat, error) {
	return read(ctx, s, func(c *zk.Conn) (*zk.Stat, error) {
		exists, stat, err := c.Exists(path)
		if !exists {
			return nil, err
		}
		return stat, err
	})
}

// children returns the names of a resource's nodes that begin with prefix.
func (s *session) children(ctx context.Context, resource, prefix string) ([]string, error) {
	all, err := read(ctx, s, func(c *zk.Conn) ([]string, error) {
		all, _, err := c.Children(s.i.container(resource))
		return all, err
	})
	return slices.DeleteFunc(all, func(child string) bool { return !strings.HasPrefix(child, prefix) }), err
}

// catchUp makes what the session reads next at least as new as now: its server may be
// behind the leader.
func (s *session) catchUp(ctx context.Context) error {
	_, err := call(ctx, s, func(c *zk.Conn) (string, error) { return c.Sync(s.i.opts.Root) })
	if err != nil {
		return sequence.Unwritten{Err: err}
	}
	return nil
}

// ensure creates a node unless it exists. What it leaves behind holds nothing.
func (s *session) ensure(ctx context.Context, f func(*zk.Conn) (string, error)) error {
	_, err := call(ctx, s, f)
	if err == nil || errors.Is(err, zk.ErrNodeExists) {
		return nil
	}
	return sequence.Unwritten{Err: err}
}

func (s *session) makeContainer(ctx context.Context, resource string) error {
	return s.ensure(ctx, func(c *zk.Conn) (string, error) {
		return c.CreateContainer(s.i.container(resource), nil, zk.FlagContainer, s.i.opts.ACL)
	})
}

func (s *session) makeNode(ctx context.Context, path string, value []byte) error {
	return s.ensure(ctx, func(c *zk.Conn) (string, error) {
		return c.Create(path, value, zk.FlagPersistent, s.i.opts.ACL)
	})
}

// held is a lease, the session that has it, and how many had it before.
type held struct {
	*sequence.Lease
	session int64
	version int32
}

// of reports whether it is the claim's; one without a token is of any.
func (h *held) of(claim guard.Claim) bool {
	return h.ID == claim.LeaseID && (h.Token == claim.Token || claim.Token == guard.NoToken)
}

func (h *held) ttl() time.Duration { return time.Duration(h.TTL) * time.Millisecond }

// current is holder as of now.
func (s *session) current(ctx context.Context, resource string) (*held, error) {
	if err := s.catchUp(ctx); err != nil {
		return nil, err
	}
	return s.holder(ctx, resource)
}

// holder returns who has the lease; nil if nobody. It is at least as new as the session's
// last write.
func (s *session) holder(ctx context.Context, resource string) (*held, error) {
	path := s.i.lockPath(resource)
	n, err := s.get(ctx, path)
	if err != nil || n == nil {
		return nil, err
	}
	lease, err := sequence.Read(path, n.value, n.stat.Czxid)
	if err != nil {
		return nil, err
	}
	if lease.TTL == 0 || n.stat.EphemeralOwner == 0 {
		return nil, sequence.Foreign{Place: path, Value: string(n.value)}
	}
	if lease.At == 0 {
		lease.At = n.stat.Ctime
	}
	return &held{lease, n.stat.EphemeralOwner, n.stat.Version}, nil
}
