package sqlrow

import (
	"regexp"
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

// exprTokens are the pieces of an expression that render looks at: texts and quoted
// names, words, which may have a dollar in them, placeholders, parentheses. A doubled
// quote reads as two texts.
var exprTokens = regexp.MustCompile(`'[^']*'?|"[^"]*"?|[\w\x{80}-\x{10FFFF}][\w$\x{80}-\x{10FFFF}]*|\$[\w$]*|[()]`)

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
	var wrong string
	used, open := make([]bool, len(e.args)), 0
	moved := exprTokens.ReplaceAllStringFunc(e.sql, func(token string) string {
		switch c := token[0]; c {
		case '\'', '"':
			if len(token) == 1 || token[len(token)-1] != c {
				wrong = "has an open quote"
			}
		case '(':
			open++
		case ')':
			if open--; open < 0 { // it would close the parentheses around it
				wrong = "must be one expression"
			}
		case '$': // older servers read $1a as two words
			n, err := strconv.Atoi(token[1:])
			switch {
			case token == "$" || token[1] < '0' || token[1] > '9':
				wrong = "must not contain dollar quotes"
				return token
			case err != nil || n < 1 || n > len(e.args):
				wrong = "uses " + token + " and has " + strconv.Itoa(len(e.args)) + " arguments"
				return token
			}
			used[n-1] = true
			return placeholder(n + offset)
		}
		return token
	})
	switch n := slices.Index(used, false); {
	case wrong != "":
		return invalid(wrong)
	case open > 0:
		return invalid("has an open parenthesis")
	case n >= 0:
		return invalid("has " + strconv.Itoa(len(e.args)) + " arguments and does not use " + placeholder(n+1))
	}
	return "(" + moved + ")", nil
}

func placeholder(n int) string { return "$" + strconv.Itoa(n) }
