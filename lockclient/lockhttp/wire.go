package lockhttp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

// seconds is a duration as encoded in JSON: a decimal number of seconds, exact
// to the microsecond.
type seconds time.Duration

// MarshalJSON writes all significant digits.
func (s seconds) MarshalJSON() ([]byte, error) {
	d := time.Duration(s).Truncate(time.Microsecond)
	text := strconv.FormatInt(int64(d/time.Second), 10)
	if part := d % time.Second; part != 0 {
		text += "." + strings.TrimRight(fmt.Sprintf("%06d", part/time.Microsecond), "0")
	}
	return []byte(text), nil
}

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

// grantBody is the response to an acquire. A token is there twice: as a number, and as
// text, since readers that have only floats lose digits above 2^53.
type grantBody struct {
	Acquired     bool        `json:"acquired"`
	Resource     string      `json:"resource"`
	LeaseID      string      `json:"leaseId"`
	FencingToken int64       `json:"fencingToken,omitempty"`
	Token        guard.Token `json:"token,omitzero"`
	TTL          seconds     `json:"ttlSeconds,omitempty"`
	AcquiredAt   time.Time   `json:"acquiredAt,omitzero"`
	ExpiresAt    time.Time   `json:"expiresAt,omitzero"`
	Waited       seconds     `json:"waitedSeconds"`
	Reclaimed    bool        `json:"reclaimed,omitempty"`
	Proof        string      `json:"proof,omitempty"`
	Holder       *holder     `json:"holder,omitempty"` // of a refusal
	ServerTime   time.Time   `json:"serverTime"`
}

// holder is who has a lease.
type holder struct {
	Owner     string      `json:"ownerId"`
	Metadata  string      `json:"metadata,omitempty"`
	LeaseID   string      `json:"leaseId,omitempty"`
	Number    int64       `json:"fencingToken,omitempty"`
	Token     guard.Token `json:"token,omitzero"`
	ExpiresAt time.Time   `json:"expiresAt,omitzero"`
	Remaining seconds     `json:"remainingSeconds"`
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
		out.LeaseID, out.Number, out.Token = h.LeaseID, int64(h.Token), h.Token
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
	Resource     string      `json:"resource,omitempty"`
	LeaseID      string      `json:"leaseId,omitempty"`
	FencingToken int64       `json:"fencingToken,omitempty"`
	Token        guard.Token `json:"token,omitzero"`
	State        string      `json:"state"`            // extended, over, or the word of an error's type
	Field        string      `json:"field,omitempty"`  // what is wrong with an invalid item
	Detail       string      `json:"detail,omitempty"` // for an item that was not carried out
	TTL          seconds     `json:"ttlSeconds,omitempty"`
	ExpiresAt    time.Time   `json:"expiresAt,omitzero"`
	Proof        string      `json:"proof,omitempty"`
	ServerTime   time.Time   `json:"serverTime"`
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

// fields is a request's JSON object, whose members are removed one by one.
// encoding/json would accept "RESOURCE" for "resource", take the last of two
// members with the same name, and change text that is not UTF-8.
type fields struct {
	in  map[string]json.RawMessage
	err error // the first
}

func parseFields(body []byte) (f fields) {
	fail := func(problem string) fields { return fields{err: guard.Invalid("body", string(body), problem)} }
	if !utf8.Valid(body) {
		return fail("must be UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(body))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return fail("must be a JSON object")
	}
	f.in = map[string]json.RawMessage{}
	for d.More() {
		key, err := d.Token()
		name, ok := key.(string)
		if err != nil || !ok {
			return fail("must be a JSON object")
		}
		if _, twice := f.in[name]; twice {
			return fields{err: guard.Invalid(name, name, "is given twice")}
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return fail("must be a JSON object")
		}
		f.in[name] = value
	}
	if _, err := d.Token(); err != nil {
		return fail("must be a JSON object")
	}
	if _, err := d.Token(); err != io.EOF {
		return fail("must be one JSON object and nothing else")
	}
	return f
}

// take removes a member; nil if it is absent or null.
func (f *fields) take(name string) json.RawMessage {
	v := f.in[name]
	delete(f.in, name)
	if string(v) == "null" {
		return nil
	}
	return v
}

func (f *fields) fail(name string, value []byte, problem string) {
	if f.err == nil {
		f.err = guard.Invalid(name, string(value), problem)
	}
}

// text takes a string; empty if it is absent.
func (f *fields) text(name string) string {
	raw := f.take(name)
	if raw == nil {
		return ""
	}
	var s string
	if json.Unmarshal(raw, &s) != nil {
		f.fail(name, raw, "must be a string")
		return ""
	}
	// Half a surrogate pair becomes U+FFFD, so two texts would become the same.
	if n := strings.Count(s, "\ufffd"); n > 0 && n != bytes.Count(raw, []byte("\ufffd"))+bytes.Count(bytes.ToLower(raw), []byte(`\ufffd`)) {
		f.fail(name, raw, "has half a surrogate pair")
	}
	return s
}

func (f *fields) seconds(name string) time.Duration {
	raw := f.take(name)
	if raw == nil {
		return 0
	}
	d, ok := parseSeconds(string(raw))
	if !ok {
		f.fail(name, raw, "must be a number of seconds, with up to six digits after the point")
	}
	return d
}

func (f *fields) flag(name string) bool {
	switch raw := f.take(name); string(raw) {
	case "true":
		return true
	case "", "false":
		return false
	default:
		f.fail(name, raw, "must be true or false")
		return false
	}
}

// moment takes a time of RFC 3339; zero if it is absent.
func (f *fields) moment(name string) time.Time {
	s := f.text(name)
	if s == "" {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		f.fail(name, []byte(s), "must be a time as in RFC 3339")
	}
	return t
}

// token takes a token as text or as a number, which is read digit by digit.
func (f *fields) token(name string, required bool) guard.Token {
	raw := f.take(name)
	if raw == nil {
		if required && f.err == nil {
			f.err = guard.Missing(name)
		}
		return guard.NoToken
	}
	t, err := guard.ParseToken(strings.Trim(string(raw), `"`))
	if err != nil || len(raw) > 1 && (raw[0] == '"') != (raw[len(raw)-1] == '"') {
		f.fail(name, raw, "must be a decimal number from 1 to "+guard.MaxToken.String())
	}
	return t
}

// end refuses members that were not taken.
func (f *fields) end() error {
	if f.err == nil && len(f.in) > 0 {
		names := make([]string, 0, len(f.in))
		for name := range f.in {
			names = append(names, name)
		}
		name := slices.Min(names)
		f.err = guard.Invalid("body", name, "is not a field of this request")
	}
	return f.err
}
