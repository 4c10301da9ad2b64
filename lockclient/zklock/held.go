package zklock

import (
	"context"
	"encoding/json"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

// held is the value of a lock node.
type held struct {
	Version  int         `json:"v"`
	ID       string      `json:"id"`
	Owner    string      `json:"owner"`
	Metadata string      `json:"metadata,omitempty"`
	Base     int64       `json:"base,string"` // the token less the node's zxid
	TTL      int64       `json:"ttl"`         // ms
	Token    guard.Token `json:"token"`       // set if a session other than the first has the lease
	At       int64       `json:"at,omitempty"`

	session int64
}

// heldBy returns who has the lease; if nobody has it, Remaining is 0. How long a
// session has left is not known: it is at most the whole TTL.
func heldBy(resource string, h *held) *driver.HeldError {
	if h == nil {
		return &driver.HeldError{Resource: resource, ExpiresAt: time.Now()}
	}
	remaining := time.Duration(h.TTL) * time.Millisecond
	return &driver.HeldError{Resource: resource, Token: h.Token, LeaseID: h.ID, Owner: h.Owner, Metadata: h.Metadata,
		Remaining: remaining, ExpiresAt: time.Now().Add(remaining)}
}

// current is holder as of now: the session's server may be behind the leader, and
// catches up first.
func (s *session) current(ctx context.Context, resource string) (*held, error) {
	if err := s.catchUp(ctx); err != nil {
		return nil, err
	}
	return s.holder(ctx, resource)
}

// catchUp makes what the session reads next at least as new as now.
func (s *session) catchUp(ctx context.Context) error {
	_, err := call(ctx, s, func(c *zk.Conn) (string, error) { return c.Sync(s.i.opts.Root) })
	return err
}

// holder reads a lock's node; nil if there is none. It is at least as new as the
// session's last write.
func (s *session) holder(ctx context.Context, resource string) (*held, error) {
	return s.read(ctx, s.i.lockPath(resource))
}

func (s *session) read(ctx context.Context, path string) (*held, error) {
	n, err := s.get(ctx, path)
	if err != nil || n == nil {
		return nil, err
	}
	h := &held{session: n.stat.EphemeralOwner}
	if err := json.Unmarshal(n.value, h); err != nil || h.Version != 1 || h.ID == "" || h.Base < 0 || h.TTL <= 0 || n.stat.EphemeralOwner == 0 {
		return nil, foreign{path, string(n.value)}
	}
	if h.Token == guard.NoToken && h.Base > int64(guard.MaxToken)-n.stat.Czxid {
		return nil, foreign{path, string(n.value)}
	}
	if h.Token == guard.NoToken {
		h.Token, h.At = guard.Token(h.Base+n.stat.Czxid), n.stat.Ctime
	}
	return h, nil
}
