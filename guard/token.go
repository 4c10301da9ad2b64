package guard

import (
	"math"
	"strconv"
)

// Token is a fencing token: a number that grows with every lease granted on a
// resource, so that of two holders the later one has the higher token.
//
// Valid tokens are 1 to [MaxToken]. The zero value, [NoToken], means "none";
// negative values are invalid. Tokens of one resource are ordered by their
// number; tokens of different resources are not comparable.
type Token int64

const (
	// NoToken is the zero Token: nothing was presented, nothing was admitted.
	NoToken Token = 0
	// MaxToken is the highest valid Token. One value is left above it so that
	// "the next token" of a valid token never overflows.
	MaxToken Token = math.MaxInt64 - 1
)

// Valid reports whether t is between 1 and [MaxToken].
func (t Token) Valid() bool { return t > NoToken && t <= MaxToken }

// Validate returns nil if t is valid, else an [*InvalidError] for the field
// "token".
func (t Token) Validate() error {
	if t.Valid() {
		return nil
	}
	return Invalid("token", t.String(), "must be 1 to "+MaxToken.String())
}

// String returns t in decimal.
func (t Token) String() string { return strconv.FormatInt(int64(t), 10) }

// ParseToken parses the one accepted spelling of a token: a decimal number of
// 1 to 19 digits that does not start with zero (^[1-9][0-9]{0,18}$), at most
// [MaxToken]. Two spellings of one number would be two tokens to a proxy or a
// log but one to the comparison, so signs, spaces, leading zeros and non-ASCII
// digits are refused. The error is an [*InvalidError] for the field "token".
func ParseToken(s string) (Token, error) {
	// 19 digits cannot overflow a uint64, so the range is tested once, at the end.
	if len(s) == 0 || len(s) > 19 || s[0] == '0' {
		return NoToken, invalidToken(s)
	}
	var n uint64
	for i := range len(s) {
		d := s[i] - '0'
		if d > 9 {
			return NoToken, invalidToken(s)
		}
		n = n*10 + uint64(d)
	}
	if n > uint64(MaxToken) {
		return NoToken, invalidToken(s)
	}
	return Token(n), nil
}

func invalidToken(s string) error {
	return Invalid("token", s, "must be a decimal number from 1 to "+MaxToken.String()+" without sign, space or leading zero")
}

// MarshalText implements [encoding.TextMarshaler]: JSON and metadata carry a
// token as a decimal string, because a JSON number loses precision above 2^53
// in many readers (RFC 8259, section 6). NoToken is written as "0"; an invalid
// token is an error.
func (t Token) MarshalText() ([]byte, error) {
	if t != NoToken && !t.Valid() {
		return nil, t.Validate()
	}
	return strconv.AppendInt(nil, int64(t), 10), nil
}

// UnmarshalText implements [encoding.TextUnmarshaler]. It accepts what
// [ParseToken] accepts, and "0" for [NoToken].
func (t *Token) UnmarshalText(b []byte) error {
	if string(b) == "0" {
		*t = NoToken
		return nil
	}
	v, err := ParseToken(string(b))
	if err != nil {
		return err
	}
	*t = v
	return nil
}
