package httpfence

import (
	"net/http"

	"github.com/fencepost-go/fencepost/guard"
)

// Integer returns a [ResourceFunc] that gives what part gives, if that is the
// one spelling of an integer: decimal digits without plus sign or leading zero.
// Everything else is [guard.ErrInvalid].
//
// Use it for a row whose key is a number. PostgreSQL and strconv read "7", "07"
// and "+7" as one number, so without it "/accounts/07" is the row of
// "/accounts/7" under a mark of its own, which no stale token is below.
//
// It panics if part is nil. It allocates nothing.
func Integer(part ResourceFunc) ResourceFunc {
	return spelled("Integer", part, "must be an integer without plus sign or leading zero", func(s string) (string, bool) {
		return s, isInteger(s)
	})
}

// UUID returns a [ResourceFunc] that gives what part gives in lower case, if it
// is a UUID as RFC 9562 writes it, in five groups of hexadecimal digits with
// hyphens. Everything else is [guard.ErrInvalid], also the forms with braces, with
// "urn:uuid:" and without hyphens, which PostgreSQL and some packages read as
// the same UUID.
//
// It panics if part is nil. It allocates only for upper case.
func UUID(part ResourceFunc) ResourceFunc {
	return spelled("UUID", part, "must be a UUID of 36 characters, in five groups", canonicalUUID)
}

func spelled(name string, part ResourceFunc, problem string, canonical func(string) (string, bool)) ResourceFunc {
	if part == nil {
		panic("httpfence: " + name + " needs a part")
	}
	return func(r *http.Request) (string, error) {
		s, err := part(r)
		if err != nil {
			return "", err
		}
		c, ok := canonical(s)
		if !ok {
			return "", guard.Invalid("resource component", s, problem)
		}
		return c, nil
	}
}

// isInteger reports whether s is 0 or matches -?[1-9][0-9]*.
func isInteger(s string) bool {
	if s == "0" {
		return true
	}
	if s != "" && s[0] == '-' {
		s = s[1:]
	}
	if s == "" || s[0] == '0' {
		return false
	}
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return true
}

func canonicalUUID(s string) (string, bool) {
	if len(s) != 36 {
		return "", false
	}
	var lower [36]byte
	changed := false
	for i := range len(s) {
		c := s[i]
		switch hyphen := i == 8 || i == 13 || i == 18 || i == 23; {
		case hyphen && c == '-', !hyphen && ('0' <= c && c <= '9' || 'a' <= c && c <= 'f'):
		case !hyphen && 'A' <= c && c <= 'F':
			c += 'a' - 'A'
			changed = true
		default:
			return "", false
		}
		lower[i] = c
	}
	if changed {
		return string(lower[:]), true
	}
	return s, true
}
