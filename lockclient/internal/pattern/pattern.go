// Package pattern selects resources by a pattern of their names, in SQL and in Go.
package pattern

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/input"
)

// Pattern selects resources by the components of their names, which ":"
// separates. It is a range of names in byte order, the order of the primary
// key, and an expression that narrows the range where it is too wide.
type Pattern struct {
	// Low and High bound the names: from Low up to, but without, High; an empty
	// High means no bound.
	Low, High string
	// Expression is a regular expression of PostgreSQL that the names match; nil
	// if all names between the bounds are selected.
	Expression *string
}

// New reads a pattern; the error is an InvalidError about field:
//
//	""                          every name
//	"tenant_1"                  tenant_1, and what begins with tenant_1:
//	"tenant_1:*:2026-04"        "*" in place of a component is any one
//	"tenant_1:bill*"            at the end "*" is any rest
//
// So "tenant_1" never selects tenant_12. "*" has no other meaning; in a name,
// write that character as %2A.
func New(field, text string) (Pattern, error) {
	if err := input.Plain(field, text, guard.MaxResourceLen); err != nil {
		return Pattern{}, err
	}
	if text == "" {
		return Pattern{}, nil
	}
	components := strings.Split(text, ":")
	last, open := strings.CutSuffix(components[len(components)-1], "*")
	components[len(components)-1] = last
	low, expression := "", "^"
	fixed := true // nothing but literals so far
	for i, c := range components {
		end := i == len(components)-1
		switch {
		case c == "*" && !end:
			fixed = false
			expression += "[^:]*"
		case strings.Contains(c, "*"):
			return Pattern{}, guard.Invalid(field, text, `"*" stands for a whole component or, at the end, for the rest; write %2A for the character itself`)
		default:
			c = strings.ReplaceAll(c, "%2A", "*")
			expression += regexp.QuoteMeta(c)
			if fixed {
				low += c
			}
		}
		if !end {
			expression += ":"
			if fixed {
				low += ":"
			}
		}
	}
	switch {
	case fixed && open:
		return Pattern{Low: low, High: successor(low)}, nil
	case fixed: // the name itself, up to all that begin with it and ":"
		expression += "(:|$)"
		return Pattern{Low: low, High: low + ";", Expression: &expression}, nil
	case !open:
		expression += "(:|$)"
	}
	return Pattern{Low: low, High: successor(low), Expression: &expression}, nil
}

// Match reports whether the pattern selects a name.
func (p Pattern) Match(name string) bool {
	if name < p.Low || p.High != "" && name >= p.High {
		return false
	}
	return p.Expression == nil || regexp.MustCompile(*p.Expression).MatchString(name)
}

// Bounded returns a statement whose range ends at a parameter, without the end
// condition if there is no end: a condition on the parameter instead would make
// a generic plan read on to the end of the index. end is the condition, as in
// "f.resource < $2::text".
func (p Pattern) Bounded(sql, end string) string {
	if p.High != "" {
		return sql
	}
	column, parameter, _ := strings.Cut(end, " < ")
	return strings.Replace(sql, end, column+" IS NOT NULL AND "+parameter+" = ''", 1)
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
			continue // nothing follows it: increment the one before it
		case 0xD7FF:
			r = 0xDFFF // surrogates are not characters
		}
		return s + string(r+1)
	}
	return ""
}
