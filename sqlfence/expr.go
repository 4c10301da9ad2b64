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
