// Package wire is what the JSON forms of leases have in common: those of operators' records,
// of the lock server and of fencectl.
package wire

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// Seconds is a duration as encoded in JSON: a number of seconds, exact to the microsecond.
// A float is: there are fifteen digits at most.
type Seconds time.Duration

// SecondsMost is the most that is read. What an issuer says may be more.
const SecondsMost = 1e9 * time.Second

// Bounded returns the duration as it may be written: from 0 to [SecondsMost].
func Bounded(d time.Duration) Seconds { return Seconds(min(max(0, d), SecondsMost)) }

// String writes all significant digits.
func (s Seconds) String() string {
	text := strconv.FormatFloat(time.Duration(s).Truncate(time.Microsecond).Seconds(), 'f', 6, 64)
	return strings.TrimRight(strings.TrimRight(text, "0"), ".")
}

// MarshalJSON writes the number.
func (s Seconds) MarshalJSON() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalJSON reads a number from 0 to a billion.
func (s *Seconds) UnmarshalJSON(b []byte) error {
	n, err := strconv.ParseFloat(string(b), 64)
	if err != nil || !(n >= 0 && n <= SecondsMost.Seconds()) {
		return fmt.Errorf("%q is not a number of seconds", b)
	}
	*s = Seconds(time.Duration(math.Round(n*1e6)) * time.Microsecond)
	return nil
}

// Twice is a token as a number, and as text, since readers that have only floats lose
// digits above 2^53.
type Twice struct {
	Number int64       `json:"fencingToken,omitempty"`
	Token  guard.Token `json:"token,omitzero"`
}

// TwiceOf returns the token in both forms.
func TwiceOf(t guard.Token) Twice { return Twice{int64(t), t} }

// Either is the token, also of a writer that has only one of the forms.
func (t Twice) Either() guard.Token { return cmp.Or(t.Token, guard.Token(t.Number)) }

// Join encodes v, which becomes an object, with the members of more.
func Join(v, more any) (json.RawMessage, error) {
	one, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	other, err := json.Marshal(more)
	if err != nil || string(other) == "{}" {
		return one, err
	}
	return append(append(one[:len(one)-1], ','), other[1:]...), nil
}
