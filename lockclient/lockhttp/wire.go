package lockhttp

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

// seconds is a duration as encoded in JSON: a number of seconds, exact to the microsecond.
// A float is: there are fifteen digits at most.
type seconds time.Duration

// secondsMost is the most that is read. What an issuer says may be more.
const secondsMost = 1e9 * time.Second

// String writes all significant digits.
func (s seconds) String() string {
	text := strconv.FormatFloat(time.Duration(s).Truncate(time.Microsecond).Seconds(), 'f', 6, 64)
	return strings.TrimRight(strings.TrimRight(text, "0"), ".")
}

// MarshalJSON writes the number.
func (s seconds) MarshalJSON() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalJSON reads a number from 0 to a billion.
func (s *seconds) UnmarshalJSON(b []byte) error {
	n, err := strconv.ParseFloat(string(b), 64)
	if err != nil || !(n >= 0 && n <= secondsMost.Seconds()) {
		return fmt.Errorf("%q is not a number of seconds", b)
	}
	*s = seconds(time.Duration(math.Round(n*1e6)) * time.Microsecond)
	return nil
}

// twice is a token as a number, and as text, since readers that have only floats lose
// digits above 2^53.
type twice struct {
	Number int64       `json:"fencingToken,omitempty"`
	Token  guard.Token `json:"token,omitzero"`
}

func twiceOf(t guard.Token) twice { return twice{int64(t), t} }

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

// holderOf omits what lets the reader act as the holder, unless it may see
// that.
func holderOf(h *driver.HeldError, all bool) *holder {
	if h == nil {
		return nil
	}
	out := &holder{Owner: h.Owner, Metadata: h.Metadata, ExpiresAt: h.ExpiresAt, Remaining: seconds(h.Remaining)}
	if h.Remaining > 0 {
		out.Remaining = seconds(min(max(h.Remaining, time.Microsecond), secondsMost)) // 0 means free
	}
	if all {
		out.LeaseID, out.twice = h.LeaseID, twiceOf(h.Token)
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
