package sqlrow

import (
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/fencepost-go/fencepost/guard"
)

// Expr is a piece of SQL with its arguments: a value of a [Set] that the database
// computes, or a predicate of [Table.Where]. Make one with [Raw].
type Expr struct {
	sql  string
	args []any
}

// Raw returns an expression: Raw("total_cents + $1", 250), Raw("now()"). Its
// placeholders count from $1, whatever else the statement contains. The text is
// sent as it is: never build it from input. It has no comment, semicolon, backslash
// or dollar quote, not even in quotes; give such a text as an argument.
func Raw(sql string, args ...any) Expr { return Expr{sql: sql, args: args} }

// render writes the expression in parentheses, with its placeholders moved up by
// offset.
func (e Expr) render(field string, offset int) (string, error) {
	invalid := func(why string) (string, error) { return "", guard.Invalid(field, e.sql, why) }
	switch {
	case strings.TrimSpace(e.sql) == "":
		return invalid("is an empty expression")
	case !utf8.ValidString(e.sql) || strings.ContainsRune(e.sql, 0):
		return invalid("must be valid UTF-8 without NUL")
	case strings.Contains(e.sql, "--") || strings.Contains(e.sql, "/*") || strings.ContainsAny(e.sql, `;\`):
		return invalid("must be one expression without comments, semicolons and backslashes, not even in quotes; give such a text as an argument")
	}
	var b strings.Builder
	used, open := make([]bool, len(e.args)), 0
	for s := e.sql; s != ""; {
		n := 1
		switch c := s[0]; {
		case c == '\'' || c == '"': // a doubled quote reads as two texts
			if n = strings.IndexByte(s[1:], c) + 2; n == 1 {
				return invalid("has an open quote")
			}
		case c == '(':
			open++
		case c == ')':
			if open--; open < 0 { // it would close the parentheses around it
				return invalid("must be one expression")
			}
		case isWord(c):
			n = wordLen(s)
		case c == '$':
			n += len(s) - 1 - len(strings.TrimLeft(s[1:], "0123456789"))
			number, err := strconv.Atoi(s[1:n])
			switch {
			case n == 1:
				return invalid("must not contain dollar quotes")
			case n < len(s) && isWord(s[n]): // older servers read this as two words
				return invalid("has letters after " + s[:n])
			case err != nil || number < 1 || number > len(e.args):
				return invalid("uses " + s[:n] + " and has " + strconv.Itoa(len(e.args)) + " arguments")
			}
			used[number-1] = true
			b.WriteString(placeholder(number + offset))
			s = s[n:]
			continue
		}
		b.WriteString(s[:n])
		s = s[n:]
	}
	if open > 0 {
		return invalid("has an open parenthesis")
	}
	if n := slices.Index(used, false); n >= 0 {
		return invalid("has " + strconv.Itoa(len(e.args)) + " arguments and does not use " + placeholder(n+1))
	}
	return "(" + b.String() + ")", nil
}

// wordLen returns the length of the word that s begins with. A dollar in it is part
// of the word.
func wordLen(s string) int {
	n := 1
	for n < len(s) && (isWord(s[n]) || s[n] == '$') {
		n++
	}
	return n
}

func isWord(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
}

func placeholder(n int) string { return "$" + strconv.Itoa(n) }
