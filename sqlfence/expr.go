package sqlfence

import (
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/fencepost-go/fencepost/guard"
)

// Expr is a value of a [Set] that the database computes. Make one with [Raw].
type Expr struct {
	sql  string
	args []any
}

// Raw returns an SQL expression for a [Set]: Raw("total_cents + $1", 250),
// Raw("now()"). Its placeholders count from $1, whatever else the statement
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
			escapes := i > 0 && (s[i-1] == 'e' || s[i-1] == 'E') && (i == 1 || !isWord(s[i-2]))
			n = quotedLen(s[i:], '\'', escapes)
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
