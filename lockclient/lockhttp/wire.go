package lockhttp

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

// seconds is a duration as encoded in JSON: a decimal number of seconds, exact
// to the microsecond.
type seconds time.Duration

// String writes all significant digits. A float has them: there are fifteen at most.
func (s seconds) String() string {
	text := strconv.FormatFloat(time.Duration(s).Truncate(time.Microsecond).Seconds(), 'f', 6, 64)
	return strings.TrimRight(strings.TrimRight(text, "0"), ".")
}

// MarshalJSON writes the number.
func (s seconds) MarshalJSON() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalJSON reads the number as parseSeconds does.
func (s *seconds) UnmarshalJSON(b []byte) error {
	d, ok := parseSeconds(string(b))
	if !ok {
		return fmt.Errorf("%q is not a number of seconds", b)
	}
	*s = seconds(d)
	return nil
}

// parseSeconds reads a decimal number without an exponent, of up to nine digits
// and six after the point. A float would round it.
func parseSeconds(text string) (time.Duration, bool) {
	whole, part, dotted := strings.Cut(text, ".")
	digits := func(s string, low, high int) bool {
		return len(s) >= low && len(s) <= high && strings.Trim(s, "0123456789") == ""
	}
	if !digits(whole, 1, 9) || dotted && !digits(part, 1, 6) {
		return 0, false
	}
	sec, _ := strconv.ParseInt(whole, 10, 64)
	micro, _ := strconv.ParseInt((part + "000000")[:6], 10, 64)
	return time.Duration(sec)*time.Second + time.Duration(micro)*time.Microsecond, true
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
	AcquiredAt time.Time `json:"acquiredAt,omitzero"`
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
		out.Remaining = seconds(max(h.Remaining, time.Microsecond)) // 0 means free
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

// renewedBody is the response to a renewal; in a batch it is one item.
type renewedBody struct {
	Resource string `json:"resource,omitempty"`
	LeaseID  string `json:"leaseId,omitempty"`
	twice
	State      string    `json:"state"`            // extended, over, or the word of an error's type
	Field      string    `json:"field,omitempty"`  // what is wrong with an invalid item
	Detail     string    `json:"detail,omitempty"` // for an item that was not carried out
	TTL        seconds   `json:"ttlSeconds,omitempty"`
	ExpiresAt  time.Time `json:"expiresAt,omitzero"`
	Proof      string    `json:"proof,omitempty"`
	ServerTime time.Time `json:"serverTime"`
}

func renewedOf(claim guard.Claim, state string) renewedBody {
	return renewedBody{
		Resource: claim.Resource, LeaseID: claim.LeaseID, twice: twiceOf(claim.Token),
		State: state, ServerTime: time.Now(),
	}
}

type batchBody struct {
	Results    []renewedBody `json:"results"`
	ServerTime time.Time     `json:"serverTime"`
}

// releasedBody names the lease: a gateway's own response confirms nothing.
type releasedBody struct {
	Released   bool      `json:"released"`
	Resource   string    `json:"resource"`
	LeaseID    string    `json:"leaseId"`
	ServerTime time.Time `json:"serverTime"`
}

// whyBody says why a lease is over, if that is known.
type whyBody struct {
	Cut        *cut      `json:"forceUnlocked,omitempty"`
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
