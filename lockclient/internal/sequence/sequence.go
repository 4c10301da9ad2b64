// Package sequence is what the issuers on etcd and ZooKeeper have in common. Their engine
// numbers its writes: a revision, a zxid. A token is a base plus the number of the
// write that granted it; the base is stored on the engine and read by every issuer.
package sequence

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

const (
	// MaxRetries is how often a write is repeated whose base was raised since it was read.
	MaxRetries = 5
	// KeptFor is how long a released lease is left to the process that was woken.
	KeptFor = 300 * time.Millisecond
	// maxAdvance leaves room for the numbers to come, and for epochs.
	maxAdvance guard.Token = 1<<62 - 1
	// lostAtMost is more than a restore can set a number back: 64 elections of
	// ZooKeeper, of which each adds 2^32.
	lostAtMost = 1 << 38
)

// Lease is what is stored of a lease that runs.
type Lease struct {
	Version  int    `json:"v"`
	ID       string `json:"id"`
	Owner    string `json:"owner"`
	Metadata string `json:"metadata,omitempty"`
	// Base is the token less the number of the write.
	Base int64 `json:"base,string"`
	// TTL is in ms; 0 if the engine knows it.
	TTL int64 `json:"ttl,omitempty"`
	// Token is stored only if another write has replaced that of the grant.
	Token guard.Token `json:"token,omitempty"`
	// At is when the lease was granted, in ms since 1970.
	At int64 `json:"at,omitempty"`
	// Grant names what exists while this grant lasts, and By is when a renewal had to be
	// there, in ms since 1970, so that one that came later counts for nothing; only where
	// the engine has no leases of its own.
	Grant string `json:"grant,omitempty"`
	By    int64  `json:"by,omitempty"`
}

// New is the lease that a request asks for.
func New(r driver.Request, base int64) *Lease {
	return &Lease{Version: 1, ID: r.LeaseID, Owner: r.Owner, Metadata: r.Metadata, Base: base}
}

// Text is what is stored.
func (l *Lease) Text() []byte {
	text, _ := json.Marshal(l) // it has only numbers and strings
	return text
}

// Read reads what is stored at a place since the write of that number. The error is a
// [Foreign].
func Read(place string, text []byte, number int64) (*Lease, error) {
	l := &Lease{}
	err := json.Unmarshal(text, l)
	if err != nil || l.Version != 1 || l.ID == "" || l.Base < 0 || l.TTL < 0 {
		return nil, Foreign{place, string(text)}
	}
	if l.Token == guard.NoToken {
		if l.Token = Token(l.Base, number); l.Token == guard.NoToken {
			return nil, Foreign{place, string(text)}
		}
	}
	return l, nil
}

// HeldBy is the refusal of an acquire; Remaining is 0 if l is nil, since nobody has the
// lease then.
func HeldBy(resource string, l *Lease, remaining time.Duration) *driver.HeldError {
	if l == nil {
		return &driver.HeldError{Resource: resource, ExpiresAt: time.Now()}
	}
	return &driver.HeldError{Resource: resource, Token: l.Token, LeaseID: l.ID, Owner: l.Owner, Metadata: l.Metadata,
		Remaining: remaining, ExpiresAt: time.Now().Add(remaining)}
}

// Token is the token of a grant by the write of that number; guard.NoToken if it would be
// above the highest.
func Token(base, number int64) guard.Token {
	if base > int64(guard.MaxToken)-number {
		return guard.NoToken
	}
	return guard.Token(base + number)
}

// ErrExhausted says that a token would be above the highest, which no retry cures.
var ErrExhausted = errors.New("the token space is exhausted: use another resource name")

// ErrChanged says that a request was repeated in vain: others were faster each time.
var ErrChanged = Unwritten{errors.New("the lease or the base kept changing")}

// Standing is what an engine knows of a resource.
type Standing struct {
	Held   *driver.HeldError // nil if nobody has the lease
	Base   int64
	Number int64 // of the engine's last write
}

// Advance raises all tokens above the given one, for a resource that nobody has with a lower
// one. look says how it stands, and raise stores a base, unless something has changed since
// the look.
func Advance(above guard.Token, look func() (Standing, error), raise func(base int64) (raised bool, err error)) (guard.Token, error) {
	if above > maxAdvance && above.Valid() {
		return guard.NoToken, Refusal{guard.Invalid("token", above.String(), "must be at most "+maxAdvance.String())}
	}
	if err := above.Validate(); err != nil {
		return guard.NoToken, Refusal{err}
	}
	for range MaxRetries {
		now, err := look()
		if err != nil {
			return guard.NoToken, err
		}
		if now.Held != nil && now.Held.Token < above {
			return guard.NoToken, Refusal{now.Held}
		}
		reached := Token(now.Base, now.Number)
		if reached == guard.NoToken { // the tokens are used up
			reached = guard.MaxToken
		}
		if reached >= above || now.Held != nil {
			return max(reached, above), nil
		}
		raised, err := raise(int64(above) - now.Number)
		if err != nil {
			return guard.NoToken, err
		}
		if raised {
			return above, nil
		}
	}
	return guard.NoToken, ErrChanged
}

// First is the base of an engine that has none, from this process's clock: above every
// base that was set before its data was lost.
func First() int64 { return time.Now().UnixMilli() << 20 }

// Raised is the base of the next epoch.
func Raised(base int64) int64 { return max(base+lostAtMost, First()) }

// Number reads a base. The error is a [Foreign].
func Number(place string, text []byte) (int64, error) {
	n, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil || n < 0 {
		return 0, Foreign{place, string(text)}
	}
	return n, nil
}

// Foreign is a value that no issuer wrote.
type Foreign struct{ Place, Value string }

// Error names the place and the value.
func (e Foreign) Error() string {
	return fmt.Sprintf("%q holds something else: %.64q", e.Place, e.Value)
}
