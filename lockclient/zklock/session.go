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

	"github.com/fencepost-go/fencepost/lockclient/internal/sequence"
)

// session is a ZooKeeper session. A request that the network delays does nothing once
// its session is over.
type session struct {
	i     *Issuer
	beat  string        // a node of this session only: without it nothing is granted
	ready chan struct{} // closed when err is set, or the session can be used
	err   error
	done  chan struct{} // closed when it is over

	// Guarded by Issuer.mu.
	conn    *zk.Conn
	last    error                    // why there is no connection
	up      chan struct{}            // closed while there is a connection
	watched map[string]chan struct{} // by node; closed when it has changed, or that is not known
}

// session returns the session, or begins it.
func (i *Issuer) session(ctx context.Context) (*session, error) {
	i.mu.Lock()
	if i.ctx.Err() != nil {
		i.mu.Unlock()
		return nil, errClosed
	}
	s := i.latest
	if s == nil {
		s = &session{i: i, beat: i.opts.Root + "/beat-" + rand.Text(), ready: make(chan struct{}),
			done: make(chan struct{}), up: make(chan struct{}), watched: map[string]chan struct{}{}}
		i.latest = s
		i.closing.Go(func() {
			if s.err = s.begin(); s.err != nil {
				s.end() // first, so that the next request begins another
			}
			close(s.ready)
		})
	}
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

func (s *session) begin() error {
	ctx, cancel := context.WithTimeout(s.i.ctx, 3*sessionFor)
	defer cancel()
	opts := &s.i.opts
	conn, _, err := zk.Connect(s.i.servers, sessionFor, zk.WithDialer(opts.Dialer), zk.WithEventCallback(s.event),
		zk.WithLogger(s), zk.WithLogInfo(false))
	if err != nil {
		return sequence.Unwritten{Err: err}
	}
	s.i.mu.Lock()
	s.conn = conn
	ended := s.over()
	s.i.mu.Unlock()
	if ended { // by Issuer.Close, which saw no connection
		conn.Close()
		return errOver
	}
	if opts.Scheme != "" {
		_, err := call(ctx, s, func(c *zk.Conn) (struct{}, error) {
			return struct{}{}, c.AddAuth(opts.Scheme, []byte(opts.Auth))
		})
		if err != nil {
			return sequence.Unwritten{Err: err}
		}
	}
	err = s.makeNode(ctx, s.beat, zk.FlagEphemeral)
	if errors.Is(err, zk.ErrNoNode) { // there is no root
		if err = s.makeNode(ctx, opts.Root, zk.FlagPersistent); err == nil {
			err = s.makeNode(ctx, s.beat, zk.FlagEphemeral)
		}
	}
	return err
}

// end ends the session, once. It does not block.
func (s *session) end() {
	i := s.i
	i.mu.Lock()
	defer i.mu.Unlock()
	if s.over() {
		return
	}
	close(s.done)
	if i.latest == s {
		i.latest = nil
	}
	for resource, p := range i.places {
		if p.s == s {
			delete(i.places, resource)
		}
	}
	if s.conn != nil { // below the mutex, so that Issuer.Close, which ends the session first, waits for it
		i.closing.Go(s.conn.Close) // which waits for a response, for at most a second
	}
}

func (s *session) over() bool { return closed(s.done) }

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// event is called by the client and must not block. After a session the client begins
// another, which is not this one.
func (s *session) event(e zk.Event) {
	if e.Type != zk.EventSession {
		return
	}
	if e.State == zk.StateExpired {
		s.end()
	}
	s.i.mu.Lock()
	defer s.i.mu.Unlock()
	switch connected := closed(s.up); {
	case e.State == zk.StateHasSession && !connected:
		close(s.up)
	case e.State == zk.StateDisconnected && connected:
		up := make(chan struct{})
		s.up = up
		// Servers that were restored refuse a client that has seen more.
		time.AfterFunc(sessionFor, func() {
			if !closed(up) {
				s.end()
			}
		})
	}
}

// Printf is the client's logger. Only there it says why there is no connection.
func (s *session) Printf(_ string, args ...any) {
	s.i.mu.Lock()
	defer s.i.mu.Unlock()
	for _, arg := range args {
		if err, ok := arg.(error); ok {
			s.last = err
		}
	}
}

// wait returns when there is a connection: a request passed to the client without
// one might be sent at any later time, as might one whose context has ended.
func (s *session) wait(ctx context.Context) error {
	s.i.mu.Lock()
	up := s.up
	s.i.mu.Unlock()
	select {
	case <-up:
	case <-s.done:
	case <-ctx.Done():
		return s.unconnected(ctx)
	}
	switch {
	case ctx.Err() != nil: // both were ready
		return s.unconnected(ctx)
	case s.over():
		return errOver
	}
	return nil
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

// multi carries out a transaction, in this session only: it also writes the session's
// node, and stat is that node's, with the zxid of the transaction and the leader's time.
// refused is the operation that was refused; nothing was written then.
func (s *session) multi(ctx context.Context, ops ...any) (stat *zk.Stat, refused any, err error) {
	ops = append([]any{set(s.beat, nil, -1)}, ops...)
	responses, err := call(ctx, s, func(c *zk.Conn) ([]zk.MultiResponse, error) { return c.Multi(ops...) })
	if len(responses) != len(ops) {
		if err == nil {
			err = errors.New("the servers responded to other operations")
		}
		return nil, nil, err
	}
	for n, r := range responses {
		switch {
		case r.Error == nil:
		case n == 0 && errors.Is(r.Error, zk.ErrNoNode):
			s.end() // it is over, or somebody deleted its node
			return nil, nil, errOver
		default:
			return nil, ops[n], sequence.Unwritten{Err: r.Error}
		}
	}
	return responses[0].Stat, nil, err
}

// now returns the zxid of a write and the leader's time. What the session reads next is at
// least as new.
func (s *session) now(ctx context.Context) (*zk.Stat, error) {
	stat, _, err := s.multi(ctx)
	if err != nil {
		return nil, sequence.Unwritten{Err: err} // it says nothing of a lease
	}
	return stat, nil
}

// read is call for a request that only reads; the zero value if there is no such node.
func read[T any](ctx context.Context, s *session, f func(*zk.Conn) (T, error)) (T, error) {
	var none T
	value, err := call(ctx, s, f)
	switch {
	case s.over():
		return none, errOver // in the client's next session any server may have responded
	case errors.Is(err, zk.ErrNoNode):
		return none, nil
	case err != nil:
		return none, sequence.Unwritten{Err: err}
	}
	return value, nil
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

// children returns the names of the nodes below another that begin with prefix.
func (s *session) children(ctx context.Context, path, prefix string) ([]string, error) {
	all, err := read(ctx, s, func(c *zk.Conn) ([]string, error) {
		all, _, err := c.Children(path)
		return all, err
	})
	return slices.DeleteFunc(all, func(child string) bool { return !strings.HasPrefix(child, prefix) }), err
}

// makeNode creates a node unless it exists. What it leaves behind holds nothing.
func (s *session) makeNode(ctx context.Context, path string, flags int32) error {
	_, err := call(ctx, s, func(c *zk.Conn) (string, error) {
		if flags == zk.FlagContainer {
			return c.CreateContainer(path, nil, flags, s.i.opts.ACL)
		}
		return c.Create(path, nil, flags, s.i.opts.ACL)
	})
	if err == nil || errors.Is(err, zk.ErrNodeExists) {
		return nil
	}
	return sequence.Unwritten{Err: err}
}
