package lockclient

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/fencepost-go/fencepost/guard"
)

// span is the resources from low up to, and without, high, in the order of
// their bytes, which is that of the table's index. An empty high is no bound.
type span struct{ low, high string }

// prefixed returns the span of the resources of n whose names begin with prefix.
// It is a range and not LIKE or starts_with, so that no character means anything
// and the index is entered at the right place under any plan.
func (n namespace) prefixed(prefix string) (span, error) {
	if err := plain("prefix", prefix, guard.MaxResourceLen); err != nil {
		return span{}, err
	}
	low := string(n) + prefix
	return span{low, successor(low)}, nil
}

// plain checks a text that is no resource by the rules of one.
func plain(field, s string, most int) error {
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

// successor returns the least string above all that begin with s; empty if there
// is none. In UTF-8 the order of bytes is that of code points, and a string that
// ends in the middle of one could not be sent.
func successor(s string) string {
	for s != "" {
		r, size := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-size]
		switch r {
		case unicode.MaxRune:
			continue // nothing follows it: the one before it counts
		case 0xD7FF:
			r = 0xDFFF // surrogates are no characters
		}
		return s + string(r+1)
	}
	return ""
}

// paging checks what all paged calls share.
func paging(limit, fallback int) (int, error) {
	if limit == 0 {
		return fallback, nil
	}
	if limit < 0 || limit > maxPage {
		return 0, guard.Invalid("Limit", strconv.Itoa(limit), "must be 0 to "+strconv.Itoa(maxPage))
	}
	return limit, nil
}

const (
	defaultPage = 100
	maxPage     = 1000
)
