package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strconv"
	"strings"
)

// mutant is one replacement of bytes in one file.
type mutant struct {
	file       string // below the package's directory
	start, end int    // offsets of what is replaced
	text       string // what replaces it
	operator   string
	function   string // "fencepost.raise", "raise"; "" outside of any
}

// SQL is changed word by word and line by line. An invalid change is a syntax
// error, which the tests show and which is not counted.
var (
	sqlToken = regexp.MustCompile(`--[^\n]*|'(?:[^'\n])*'|"[^"\n]*"|[<>=!~+\-*/@#%^&|?:]+|\$[0-9]+|[A-Za-z_][A-Za-z0-9_$]*|[0-9]+(?:\.[0-9]+)?`)
	sqlSwaps = map[string]string{
		"<": "<=", "<=": "<", ">": ">=", ">=": ">", "=": "<>", "<>": "=", "+": "-", "-": "+",
		"AND": "OR", "OR": "AND", "NOT": "", "true": "false", "false": "true", "TRUE": "FALSE", "FALSE": "TRUE",
		"greatest": "least", "least": "greatest", "clock_timestamp": "now", "now": "clock_timestamp",
		"pg_advisory_xact_lock": "pg_advisory_xact_lock_shared", "pg_advisory_xact_lock_shared": "pg_advisory_xact_lock",
		"DISTINCT": "", "UPDATE": "SHARE", "NULL": "NOT NULL", "max": "min", "min": "max",
	}
	sqlLine   = regexp.MustCompile(`(?m)^[ \t]*(?:(?:AND|OR|WHERE|FOR|ORDER BY|HAVING|LIMIT|PERFORM|RAISE|RETURN|SET|REVOKE|GRANT|CHECK|CONSTRAINT|IF)\b[^\n]*|[^\n]*;)$`)
	sqlCreate = regexp.MustCompile(`CREATE (?:OR REPLACE )?(?:FUNCTION|PROCEDURE|TABLE|VIEW|TRIGGER|INDEX) (?:IF NOT EXISTS )?([a-z_.]+)`)
	inGo      = regexp.MustCompile(`\b(SELECT|INSERT INTO|UPDATE|DELETE FROM|WHERE|RETURNING|VALUES|SET LOCAL|CREATE|ALTER|GRANT|CASE WHEN|ON CONFLICT|FROM|ORDER BY|COMMIT|BEGIN)\b|^\s*AND\b`)
)

// sqlMutants returns all mutants of a file of SQL, or of the SQL in the string
// literals of a Go file.
func sqlMutants(file, text string) (all []mutant, err error) {
	if !strings.HasSuffix(file, ".go") {
		all = mutate(text, 0, len(text))
		for i := range all {
			all[i].file = file
			if created := sqlCreate.FindAllStringSubmatch(text[:all[i].start], -1); created != nil {
				all[i].function = created[len(created)-1][1]
			}
		}
		return all, nil
	}
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, file, text, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	for _, decl := range parsed.Decls {
		function := ""
		if f, ok := decl.(*ast.FuncDecl); ok {
			function = f.Name.Name
		}
		ast.Inspect(decl, func(n ast.Node) bool {
			literal, ok := n.(*ast.BasicLit)
			if !ok || literal.Kind != token.STRING || !inGo.MatchString(literal.Value) {
				return true
			}
			from := files.Position(literal.Pos()).Offset
			for _, m := range mutate(text, from+1, from+len(literal.Value)-1) {
				m.file, m.function = file, function
				all = append(all, m)
			}
			return true
		})
	}
	return all, nil
}

func mutate(text string, from, to int) (all []mutant) {
	add := func(operator string, start, end int, with string) {
		all = append(all, mutant{start: from + start, end: from + end, text: with, operator: operator})
	}
	part := text[from:to]
	for _, at := range sqlToken.FindAllStringIndex(part, -1) {
		word := part[at[0]:at[1]]
		if with, ok := sqlSwaps[word]; ok {
			add(word+" -> "+with, at[0], at[1], with)
		} else if v, err := strconv.ParseInt(word, 10, 64); err == nil {
			add("other constant", at[0], at[1], strconv.FormatInt(v+1, 10))
		}
	}
	for _, at := range sqlLine.FindAllStringIndex(part, -1) {
		if !strings.HasPrefix(strings.TrimSpace(part[at[0]:at[1]]), "--") {
			add("remove line", at[0], at[1], "")
		}
	}
	return all
}

func (m mutant) apply(text string) string { return text[:m.start] + m.text + text[m.end:] }

// diff returns the mutant as removed and added lines, without indentation and
// line numbers, so that it names the mutant wherever the code moves.
func (m mutant) diff(text string) string {
	before, after := lines(text), lines(m.apply(text))
	for len(before) > 0 && len(after) > 0 && before[0] == after[0] {
		before, after = before[1:], after[1:]
	}
	for len(before) > 0 && len(after) > 0 && before[len(before)-1] == after[len(after)-1] {
		before, after = before[:len(before)-1], after[:len(after)-1]
	}
	var b strings.Builder
	for _, l := range before {
		b.WriteString("- " + l + "\n")
	}
	for _, l := range after {
		if l != "" {
			b.WriteString("+ " + l + "\n")
		}
	}
	return b.String()
}

func lines(text string) []string {
	all := strings.Split(text, "\n")
	for i := range all {
		all[i] = strings.TrimSpace(all[i])
	}
	return all
}
