package lockhttp

import (
	"time"

	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/wire"
)

type (
	seconds = wire.Seconds
	twice   = wire.Twice
)

// grantBody is the response to an acquire.
type grantBody struct {
	Acquired bool   `json:"acquired"`
	Resource string `json:"resource"`
	LeaseID  string `json:"leaseId"`
	twice
	TTL        seconds   `json:"ttlSeconds,omitempty"`
	CreatedAt  time.Time `json:"createdAt,omitzero"`
	ExpiresAt  time.Time `json:"expiresAt,omitzero"`
	Waited     seconds   `json:"waitedSeconds"`
	Reclaimed  bool      `json:"reclaimed,omitempty"`
	Proof      string    `json:"proof,omitempty"`
	Holder     *holder   `json:"holder,omitempty"` // of a refusal
	ServerTime time.Time `json:"serverTime"`
}

// holder is who has a lease.
type holder struct {
	Owner    string `json:"ownerId"`
	Metadata string `json:"metadata,omitempty"`
	LeaseID  string `json:"leaseId,omitempty"`
	twice
	ExpiresAt time.Time `json:"expiresAt,omitzero"`
	Remaining seconds   `json:"remainingSeconds"`
}

// holderOf omits who the holder is, and what lets the reader act as it, unless it may see that.
func (s *Server) holderOf(h *driver.HeldError, id *Identity) *holder {
	if h == nil {
		return nil
	}
	out := &holder{ExpiresAt: h.ExpiresAt, Remaining: seconds(h.Remaining)}
	if id.Operator || s.opts.ShowHolders {
		out.Owner, out.Metadata = h.Owner, h.Metadata
	}
	if h.Remaining > 0 {
		out.Remaining = seconds(min(max(h.Remaining, time.Microsecond), wire.SecondsMost)) // 0 means free
	}
	if id.Operator {
		out.LeaseID, out.twice = h.LeaseID, wire.TwiceOf(h.Token)
	}
	return out
}

func (h *holder) held(resource string) *driver.HeldError {
	if h == nil {
		return nil
	}
	return &driver.HeldError{
		Resource: resource, Owner: h.Owner, Metadata: h.Metadata, Token: h.Token, LeaseID: h.LeaseID,
		ExpiresAt: h.ExpiresAt, Remaining: time.Duration(h.Remaining),
	}
}

// renewedBody is the response to a renewal.
type renewedBody struct {
	Resource string `json:"resource"`
	LeaseID  string `json:"leaseId"`
	twice
	State      string    `json:"state"` // extended
	TTL        seconds   `json:"ttlSeconds"`
	ExpiresAt  time.Time `json:"expiresAt"`
	Proof      string    `json:"proof,omitempty"`
	ServerTime time.Time `json:"serverTime"`
}

// releasedBody names the lease: a gateway's own response confirms nothing.
type releasedBody struct {
	Released   bool      `json:"released"`
	Resource   string    `json:"resource"`
	LeaseID    string    `json:"leaseId"`
	ServerTime time.Time `json:"serverTime"`
}

type timeBody struct {
	ServerTime time.Time `json:"serverTime"`
}

// holderEvent is the data of an event.
type holderEvent struct {
	Resource   string    `json:"resource"`
	Holder     *holder   `json:"holder"` // null: nobody
	ServerTime time.Time `json:"serverTime"`
}
