package sqlfence

import (
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/fencepost-go/fencepost/guard"
)

// Expr is a value of a [Set] that the database computes, or a predicate for
// [Table.Where]. Make one with [Raw].
type Expr struct {
	sql  string
	args []any
}

// Raw returns an SQL expression: Raw("total_cents + $1", 250), Raw("now()"). Its placeholders count from $1, whatever else the statement
// holds. The text is SQL and is sent as it is: never build it from input.
func Raw(sql string, args ...any) Expr { return Expr{sql: sql, args: args} }

// render writes the expression with its placeholders moved up by offset. It
// knows what PostgreSQL's lexer knows of places where $1 is not a placeholder:
// quotes, dollar quotes and comments (PostgreSQL documentation, 4.1).
func (e Expr) render(field string, offset int) (string, error) {
	switch {
	case strings.TrimSpace(e.sql) == "":
		return "", guard.Invalid(field, e.sql, "is an empty expression")
	case !utf8.ValidString(e.sql) || strings.ContainsRune(e.sql, 0):
		return "", guard.Invalid(field, e.sql, "must be valid UTF-8 without NUL")
	}
	var b strings.Builder
	s, open := e.sql, 0
	for i := 0; i < len(s); {
		n := 1
		switch c := s[i]; {
		case c == '\'':
			n = quotedLen(s[i:], '\'', escaped(s, i))
		case c == '"':
			n = quotedLen(s[i:], '"', false)
		case strings.HasPrefix(s[i:], "--"), strings.HasPrefix(s[i:], "/*"):
			return "", guard.Invalid(field, e.sql, "must not contain comments")
		case c == '(':
			open++
		case c == ')' && open > 0:
			open--
		case c == ';', c == ')': // the parentheses around it must not be closed
			return "", guard.Invalid(field, e.sql, "must be one expression")
		case c == '$' && (i == 0 || !isWord(s[i-1])):
			digits := i + 1
			for digits < len(s) && s[digits] >= '0' && s[digits] <= '9' {
				digits++
			}
			if digits == i+1 {
				return "", guard.Invalid(field, e.sql, "must not contain dollar quotes")
			}
			if digits < len(s) && isWord(s[digits]) { // older servers read it as two words
				return "", guard.Invalid(field, e.sql, "has letters after "+s[i:digits])
			}
			number, err := strconv.Atoi(s[i+1 : digits])
			if err != nil || number < 1 || number > len(e.args) {
				return "", guard.Invalid(field, e.sql, "uses "+s[i:digits]+" and has "+strconv.Itoa(len(e.args))+" arguments")
			}
			b.WriteString("$" + strconv.Itoa(number+offset))
			i = digits
			continue
		}
		if n == 0 {
			return "", guard.Invalid(field, e.sql, "has an open quote")
		}
		b.WriteString(s[i : i+n])
		i += n
	}
	if open > 0 {
		return "", guard.Invalid(field, e.sql, "has an open parenthesis")
	}
	return "(" + b.String() + ")", nil
}

// What is known here of PostgreSQL's lexer (PostgreSQL documentation, 4.1), for
// standard_conforming_strings as it is by default.

func isWord(c byte) bool {
	return c == '_' || c == '$' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
}

// quotedLen returns the length of the quoted text that s begins with, 0 if it
// is not closed. A doubled quote is part of the text, and a text with escapes
// is continued after a line break with escapes.
func quotedLen(s string, quote byte, escapes bool) int {
	for i := 1; i < len(s); i++ {
		switch {
		case escapes && s[i] == '\\':
			i++
		case s[i] == quote && i+1 < len(s) && s[i+1] == quote:
			i++
		case s[i] == quote && escapes && continued(s[i+1:]) > 0:
			i += continued(s[i+1:])
		case s[i] == quote:
			return i + 1
		}
	}
	return 0
}

// continued returns the length of the white space with a line break and the
// quote after it that s begins with, 0 if it does not.
func continued(s string) int {
	rest := strings.TrimLeft(s, " \t\n\r\f\v")
	space := s[:len(s)-len(rest)]
	if !strings.HasPrefix(rest, "'") || !strings.ContainsAny(space, "\n\r") {
		return 0
	}
	return len(space) + 1
}

// escaped reports that the quote at i begins a text with escapes, E'...'.
func escaped(s string, i int) bool {
	return i > 0 && (s[i-1] == 'e' || s[i-1] == 'E') && (i == 1 || !isWord(s[i-2]))
}

// oneStatement reports that s has nothing behind its first semicolon but white
// space and comments, and leaves nothing open.
func oneStatement(s string) bool {
	ended := false
	for i := 0; i < len(s); {
		n := 1
		switch c := s[i]; {
		case strings.HasPrefix(s[i:], "--"):
			if n = strings.IndexAny(s[i:], "\n\r"); n < 0 {
				return true
			}
		case strings.HasPrefix(s[i:], "/*"):
			n = commentLen(s[i:])
		case strings.IndexByte(" \t\n\r\f\v", c) >= 0:
		case ended:
			return false
		case c == ';':
			ended = true
		case c == '\'':
			n = quotedLen(s[i:], '\'', escaped(s, i))
		case c == '"':
			n = quotedLen(s[i:], '"', false)
		case c == '$' && (i == 0 || !isWord(s[i-1])):
			n = dollarLen(s[i:])
		}
		if n == 0 {
			return false
		}
		i += n
	}
	return true
}

// firstWord returns the word that s begins with after white space and comments,
// empty if it begins with none.
func firstWord(s string) string {
	for {
		s = strings.TrimLeft(s, " \t\n\r\f")
		switch {
		case strings.HasPrefix(s, "--"):
			if s = s[2:]; strings.ContainsAny(s, "\n\r") {
				s = s[strings.IndexAny(s, "\n\r"):]
			} else {
				s = ""
			}
		case strings.HasPrefix(s, "/*"):
			n := commentLen(s)
			if n == 0 {
				return ""
			}
			s = s[n:]
		default:
			end := 0
			for end < len(s) && isWord(s[end]) {
				end++
			}
			return s[:end]
		}
	}
}

// commentLen returns the length of the comment that s begins with, 0 if it is
// not closed. Such comments nest.
func commentLen(s string) int {
	depth := 0
	for i := 0; i+1 < len(s); i++ {
		switch s[i : i+2] {
		case "/*":
			depth++
			i++
		case "*/":
			depth--
			i++
			if depth == 0 {
				return i + 1
			}
		}
	}
	return 0
}

// dollarLen returns the length of the dollar-quoted text that s begins with, 0
// if it is not closed, and 1 if the dollar begins none.
func dollarLen(s string) int {
	end := 1
	for end < len(s) && isWord(s[end]) && s[end] != '$' {
		end++
	}
	if end == len(s) || s[end] != '$' || s[1] >= '0' && s[1] <= '9' {
		return 1
	}
	tag := s[:end+1]
	closing := strings.Index(s[len(tag):], tag)
	if closing < 0 {
		return 0
	}
	return closing + 2*len(tag)
}
