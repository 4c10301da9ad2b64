package sqlfence

import (
	"regexp"
	"strings"
	"testing"
)

var (
	sqlText     = regexp.MustCompile(`'(?:[^']|'')*'|--[^\n]*`)
	sqlWords    = regexp.MustCompile(`"[^"]*"|[A-Za-z_][A-Za-z0-9_]*|::|:=|[-+*/<>=~!@#%^&|?]+|\S`)
	sqlOperator = regexp.MustCompile(`^[-+*/<>=~!@#%^&|?]+$`)
	sqlName     = regexp.MustCompile(`^[A-Za-z_]`)
)

// unqualified returns what in the body of a function is looked up on the
// caller's search_path: operators outside OPERATOR(schema.x), functions, types
// after ::, collations and tables without a schema, and words of the language
// that stand for an operator. It knows only as much SQL as such functions may
// use and reports everything else as unqualified.
func unqualified(body string) (found []string) {
	words := sqlWords.FindAllString(sqlText.ReplaceAllString(body, " "), -1)
	at := func(i int) string {
		if i < 0 || i >= len(words) {
			return ""
		}
		return words[i]
	}
	schema := func(i int) bool { // a qualified name begins at i
		return (at(i) == "pg_catalog" || at(i) == "fencepost") && at(i+1) == "."
	}
	for i, word := range words {
		bad := false
		switch upper := strings.ToUpper(word); {
		case sqlOperator.MatchString(word):
			bad = !(at(i-1) == "." && at(i-2) == "pg_catalog" && at(i-3) == "(" && at(i-4) == "OPERATOR" && at(i+1) == ")")
		case word == "::", upper == "COLLATE", upper == "FROM", upper == "JOIN", upper == "INTO", upper == "UPDATE":
			bad = !schema(i + 1)
		case upper == "IN", upper == "BETWEEN", upper == "LIKE", upper == "ILIKE", upper == "SIMILAR", upper == "NULLIF", upper == "CAST",
			upper == "DISTINCT", upper == "ANY", upper == "SOME", upper == "ALL", upper == "USING", upper == "EXECUTE", upper == "DECLARE",
			upper == "CASE" && strings.ToUpper(at(i+1)) != "WHEN":
			bad = true
		case upper == "COALESCE": // grammar: its operands bring no operator
		case upper == "IF", upper == "AND", upper == "OR", upper == "NOT", upper == "WHEN", upper == "THEN", upper == "OPERATOR":
		case sqlName.MatchString(word) && at(i+1) == "(":
			bad = !schema(i - 2)
		}
		if bad {
			found = append(found, word+" "+at(i+1))
		}
	}
	return found
}

// TestUnqualified: the check finds each kind of name when its schema is
// removed.
func TestUnqualified(t *testing.T) {
	const body = `BEGIN
		IF (CASE WHEN p OPERATOR(pg_catalog.>) 0 AND pg_catalog.f(p::pg_catalog.text COLLATE pg_catalog."C") IS NULL THEN true END) THEN
			PERFORM FROM fencepost.marks m; -- a > b
			RAISE EXCEPTION 'a = b';
		END IF;
	END`
	if found := unqualified(body); len(found) != 0 {
		t.Fatalf("a qualified body: %q", found)
	}
	for _, cut := range [][2]string{{"OPERATOR(pg_catalog.>)", ">"}, {"pg_catalog.f(", "f("}, {"::pg_catalog.", "::"}, {"COLLATE pg_catalog.", "COLLATE "},
		{"fencepost.marks", "marks"}, {"p OPERATOR(pg_catalog.>) 0", "p IN (1)"}, {"p OPERATOR(pg_catalog.>) 0", "p IS DISTINCT FROM 1"},
		{"CASE WHEN p OPERATOR(pg_catalog.>) 0", "CASE p WHEN 0"}, {"BEGIN", "DECLARE x text; BEGIN"}, {"pg_catalog.f(", "evil.f("}} {
		if !strings.Contains(body, cut[0]) || len(unqualified(strings.Replace(body, cut[0], cut[1], 1))) == 0 {
			t.Errorf("%s in place of %s is not found", cut[1], cut[0])
		}
	}
}
