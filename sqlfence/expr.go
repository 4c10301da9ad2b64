package sqlfence

import (
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/fencepost-go/fencepost/guard"
)

// Expr is a statement of a [DB.Batch] with its arguments. Make one with [Raw].
type Expr struct {
	sql  string
	args []any
}

// Raw returns a piece of SQL: Raw("total_cents + $1", 250), Raw("now()"). Its
// placeholders count from $1, whatever else the statement contains. The text is
// sent unchanged: never build it from input.
func Raw(sql string, args ...any) Expr { return Expr{sql: sql, args: args} }

// render writes the expression with its placeholders moved up by offset.
func (e Expr) render(field string, offset int) (string, error) {
	invalid := func(why string) (string, error) { return "", guard.Invalid(field, e.sql, why) }
	switch {
	case strings.TrimSpace(e.sql) == "":
		return invalid("is an empty expression")
	case !utf8.ValidString(e.sql) || strings.ContainsRune(e.sql, 0):
		return invalid("must be valid UTF-8 without NUL")
	}
	var b strings.Builder
	used := make([]bool, len(e.args))
	for s, i, open := e.sql, 0, 0; ; {
		if i == len(s) {
			if open > 0 {
				return invalid("has an open parenthesis")
			}
			if n := slices.Index(used, false); n >= 0 {
				return invalid("has " + itoa(len(e.args)) + " arguments and does not use " + placeholder(n+1))
			}
			return "(" + b.String() + ")", nil
		}
		kind, n := lex(s, i)
		text := s[i : i+n]
		switch {
		case kind == comment:
			return invalid("must not contain comments")
		case kind == dollarQuoted:
			return invalid("must not contain dollar quotes")
		case n == 0:
			return invalid("has an open quote")
		case text == "(":
			open++
		case text == ")" && open > 0:
			open--
		case text == ";" || text == ")": // it must not close the parentheses around it
			return invalid("must be one expression")
		case kind == parameter && i+n < len(s) && isWord(s[i+n]): // older servers read this as two words
			return invalid("has letters after " + text)
		case kind == parameter:
			number, err := strconv.Atoi(text[1:])
			if err != nil || number < 1 || number > len(e.args) {
				return invalid("uses " + text + " and has " + itoa(len(e.args)) + " arguments")
			}
			used[number-1] = true
			text = placeholder(number + offset)
		}
		b.WriteString(text)
		i += n
	}
}

// oneStatement reports whether s has only white space and comments after its
// first semicolon, and leaves nothing open.
func oneStatement(s string) bool {
	ended := false
	for i := 0; i < len(s); {
		kind, n := lex(s, i)
		if n == 0 || ended && kind != space && kind != comment {
			return false
		}
		ended = ended || s[i] == ';'
		i += n
	}
	return true
}

// firstWord returns the word that s begins with after white space and comments,
// empty if it begins with none.
func firstWord(s string) string {
	for i := 0; i < len(s); {
		switch kind, n := lex(s, i); {
		case kind == word:
			return s[i : i+n]
		case n == 0 || kind != space && kind != comment:
			return ""
		default:
			i += n
		}
	}
	return ""
}

// lexeme is a kind of token that this package knows of PostgreSQL's lexer
// (PostgreSQL documentation, 4.1), with standard_conforming_strings at its
// default.
type lexeme byte

const (
	other lexeme = iota // any other byte
	space
	comment
	quoted
	dollarQuoted
	parameter
	word
)

// lex returns the kind of the lexeme at s[i] and its length, 0 if it is not
// closed.
func lex(s string, i int) (kind lexeme, n int) {
	rest := s[i:]
	switch c := rest[0]; {
	case strings.HasPrefix(rest, "--"):
		if n = strings.IndexAny(rest, "\n\r"); n < 0 {
			n = len(rest)
		}
		return comment, n
	case strings.HasPrefix(rest, "/*"):
		return comment, commentLen(rest)
	case strings.IndexByte(" \t\n\r\f\v", c) >= 0:
		return space, 1
	case c == '\'':
		return quoted, quotedLen(rest, c, escaped(s, i))
	case c == '"':
		return quoted, quotedLen(rest, c, false)
	case c == '$':
		if n = len(rest) - len(strings.TrimLeft(rest[1:], "0123456789")); n > 1 {
			return parameter, n
		}
		return dollarQuoted, dollarLen(rest)
	case isWord(c):
		for n = 1; n < len(rest) && isWord(rest[n]); n++ {
		}
		return word, n
	}
	return other, 1
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

// continued returns the length of a continuation at the start of s: white space
// with a line break, perhaps with one-line comments, and then a quote. It returns
// 0 if there is none.
func continued(s string) int {
	broken := false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\n' || c == '\r':
			broken = true
		case c == '\'' && broken:
			return i + 1
		case strings.HasPrefix(s[i:], "--"):
			_, n := lex(s, i)
			i += n - 1
		case strings.IndexByte(" \t\f\v", c) < 0:
			return 0
		}
	}
	return 0
}

// escaped reports whether the quote at i begins a text with escapes, E'...'.
func escaped(s string, i int) bool {
	return i > 0 && (s[i-1] == 'e' || s[i-1] == 'E') && (i == 1 || !isWord(s[i-2]))
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
// if it is not closed, and 1 if the dollar does not begin one. No digit follows
// the dollar: that would be a parameter.
func dollarLen(s string) int {
	end := 1
	for end < len(s) && isWord(s[end]) && s[end] != '$' {
		end++
	}
	if end == len(s) || s[end] != '$' {
		return 1
	}
	tag := s[:end+1]
	closing := strings.Index(s[len(tag):], tag)
	if closing < 0 {
		return 0
	}
	return closing + 2*len(tag)
}

func placeholder(n int) string { return "$" + strconv.Itoa(n) }

func itoa(n int) string { return strconv.Itoa(n) }
