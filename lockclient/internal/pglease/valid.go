package pglease

import (
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/fencepost-go/fencepost/guard"
)

// Between checks a duration.
func Between(field string, d, low, high time.Duration) error {
	if d < low || d > high {
		return guard.Invalid(field, d.String(), "must be "+low.String()+" to "+high.String())
	}
	return nil
}

// Plain checks a text that is not a resource by the rules for resources.
func Plain(field, s string, most int) error {
	switch {
	case len(s) > most:
		return guard.Invalid(field, s, "is "+strconv.Itoa(len(s))+" bytes long, at most "+strconv.Itoa(most)+" are allowed")
	case !utf8.ValidString(s):
		return guard.Invalid(field, s, "must be valid UTF-8")
	case strings.ContainsFunc(s, unicode.IsControl):
		return guard.Invalid(field, s, "must not contain control characters")
	}
	return nil
}
