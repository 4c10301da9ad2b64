package sqlfence

import (
	"slices"
	"strings"

	"github.com/fencepost-go/fencepost/guard"
)

// fragmentProblem says what part of the fence documented at [Table.Refused] is
// missing in one of the application's own UPDATEs, "" if nothing. It recognises
// only that text, not others that mean the same.
func (t *Table) fragmentProblem(text string) string {
	words := t.lexemes(text)
	set, where := slices.Index(words, "set"), slices.Index(words, "where")
	if len(words) == 0 || words[0] != "update" || set < 0 || where < set || !oneStatement(text) {
		return "it is not one UPDATE with SET and WHERE"
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
	conditions := split(words[where+1:], ";")[0]
	if i := slices.Index(conditions, "returning"); i >= 0 {
		conditions = conditions[:i]
	}
	if len(split(conditions, "or")) > 1 {
		return "WHERE has an OR outside of parentheses, which may go past the fence"
	}
	for _, condition := range split(conditions, "and") {
		if slices.Equal(condition, want) {
			return ""
		}
	}
	return "WHERE has no " + strings.Join(want, " ")
}

// lexemes returns what text consists of without white space and comments. Words
// are in lower case, and the table's own columns as they are quoted.
func (t *Table) lexemes(text string) (all []string) {
	columns := map[string]string{}
	for column := range t.reserved {
		columns[column] = `"` + strings.ReplaceAll(column, `"`, `""`) + `"`
	}
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
			if s = strings.ToLower(s); columns[s] != "" {
				s = columns[s]
			}
		case s == "=" && len(all) > 0 && all[len(all)-1] == ">":
			all[len(all)-1] = ">="
			continue
		}
		all = append(all, s)
	}
	return all
}

// split cuts lexemes at a separator that is outside of parentheses.
func split(words []string, separator string) (parts [][]string) {
	depth, from := 0, 0
	for i, w := range words {
		switch {
		case w == "(":
			depth++
		case w == ")":
			depth--
		case depth == 0 && w == separator:
			parts, from = append(parts, words[from:i]), i+1
		}
	}
	return append(parts, words[from:])
}
