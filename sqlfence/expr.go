package sqlfence

import (
	"strconv"
	"strings"
)

// Expr is a statement of a [DB.Batch] with its arguments. Make one with [Raw].
type Expr struct {
	sql  string
	args []any
}

// Raw returns a statement: Raw("UPDATE totals SET cents = cents + $1", 250). The text
// is sent as it is: never build it from input.
func Raw(sql string, args ...any) Expr { return Expr{sql: sql, args: args} }

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
			return other, n // a parameter
		}
		return quoted, dollarLen(rest)
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

func itoa(n int) string { return strconv.Itoa(n) }
