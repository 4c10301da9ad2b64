package sqlfence

import (
	"slices"
	"strings"

	"github.com/fencepost-go/fencepost/guard"
)

// fragmentProblem says what part of the fence documented at [Table.Refused] is
// missing in one of the application's own UPDATEs, "" if nothing. It recognises
// only that text, not others that mean the same. What is inside of parentheses,
// such as the WHERE of a sub-select, is not the UPDATE's own.
func (t *Table) fragmentProblem(text string) string {
	words := t.lexemes(text)
	set, where := index(words, "set"), index(words, "where")
	if len(words) == 0 || words[0] != "update" || set < 0 || where < set || !oneStatement(text) {
		return "it is not one UPDATE with SET and WHERE"
	}
	if name := target(words[1:set]); name != t.name {
		return "it updates " + name + ", not " + t.name
	}
	assigned := func(column string) []string {
		for _, a := range split(words[set+1:where], ",") {
			if len(a) > 2 && a[0] == column && a[1] == "=" {
				return a[2:]
			}
		}
		return nil
	}
	token := assigned(t.token)
	if token == nil {
		return "SET has no " + t.token + " = the claim's token"
	}
	if slices.Contains(token, t.token) || slices.Contains(assigned(t.lease), t.lease) {
		return "SET computes the token or the lease ID from the row's own, which compares the row with itself"
	}
	compares := func(value []string, op, column string) []string {
		return append(append(slices.Clone(value), op), column)
	}
	want := compares(token, ">", t.token)
	switch {
	case t.lease != "" && assigned(t.lease) == nil:
		return "SET has no " + t.lease + " = the claim's lease ID"
	case t.rule == guard.SameOrNewer && t.lease != "":
		same := append(append(compares(token, "=", t.token), "and"), compares(assigned(t.lease), "=", t.lease)...)
		want = slices.Concat([]string{"("}, want, []string{"or", "("}, same, []string{")", ")"})
	case t.rule == guard.SameOrNewer:
		want = compares(token, ">=", t.token)
	}
	conditions := split(split(words[where+1:], ";")[0], "returning")[0]
	switch {
	case index(conditions, "or") >= 0:
		return "WHERE has an OR outside of parentheses, which may go past the fence"
	case index(conditions, "case") >= 0 || index(conditions, "between") >= 0:
		return "WHERE has a CASE or BETWEEN outside of parentheses, whose AND may not join conditions"
	}
	for _, condition := range split(conditions, "and") {
		if slices.Equal(condition, want) {
			return ""
		}
	}
	return "WHERE has no " + strings.Join(want, " ")
}

// target returns the quoted name of the table that an UPDATE names before SET,
// with ONLY, * or an alias, and any other text unchanged.
func target(words []string) string {
	rest := slices.DeleteFunc(slices.Clone(words), func(w string) bool { return w == "only" || w == "(" || w == ")" || w == "*" })
	name := ""
	for len(rest) > 0 {
		part := rest[0]
		if part[0] != '"' {
			part = `"` + part + `"`
		}
		name += part
		if rest = rest[1:]; len(rest) < 2 || rest[0] != "." {
			break
		}
		name, rest = name+".", rest[1:]
	}
	if len(rest) > 0 && rest[0] == "as" {
		rest = rest[1:]
	}
	if len(rest) > 1 {
		return strings.Join(words, " ")
	}
	return name
}

// lexemes returns what text consists of without white space and comments. Words
// are in lower case, and the columns of the token and the lease quoted.
func (t *Table) lexemes(text string) (all []string) {
	for i := 0; i < len(text); {
		kind, n := lex(text, i)
		if n == 0 {
			return nil
		}
		s := text[i : i+n]
		i += n
		switch {
		case kind == space || kind == comment:
			continue
		case kind == word:
			s = strings.ToLower(s)
			if column := `"` + s + `"`; column == t.token || column == t.lease {
				s = column
			}
		case s == "=" && len(all) > 0 && all[len(all)-1] == ">":
			all[len(all)-1] = ">="
			continue
		}
		all = append(all, s)
	}
	return all
}

// index returns where a word is outside of parentheses, -1 if nowhere.
func index(words []string, word string) int {
	if n := len(split(words, word)[0]); n < len(words) {
		return n
	}
	return -1
}

// split cuts lexemes at a separator that is outside of parentheses and brackets.
func split(words []string, separator string) (parts [][]string) {
	depth, from := 0, 0
	for i, w := range words {
		switch {
		case w == "(" || w == "[":
			depth++
		case w == ")" || w == "]":
			depth--
		case depth == 0 && w == separator:
			parts, from = append(parts, words[from:i]), i+1
		}
	}
	return append(parts, words[from:])
}
