package main

import (
	"go/ast"
	"go/token"
	"go/types"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// mutants returns every mutant of the package in an order determined by seed.
func (p *goPackage) mutants(seed uint64) []mutant {
	var all []mutant
	for _, name := range p.names {
		if f := p.files[name]; f != nil {
			g := &generator{p: p, f: f, name: name, out: &all}
			ast.Inspect(f, g.visit)
		} else {
			mutateSQL(p.text[name], 0, len(p.text[name]), func(m mutant) {
				m.file, m.function = name, sqlFunction(p.text[name][:m.start])
				all = append(all, m)
			})
		}
	}
	all = slices.DeleteFunc(all, func(m mutant) bool { return p.text[m.file][m.start:m.end] == m.text })
	rand.New(rand.NewPCG(seed, 0)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for i := range all {
		all[i].index = i
	}
	return all
}

// generator makes the mutants of one Go file.
type generator struct {
	p     *goPackage
	f     *ast.File
	name  string
	out   *[]mutant
	stack []ast.Node
}

func (g *generator) offset(pos token.Pos) int { return g.p.fset.Position(pos).Offset }

func (g *generator) source(n ast.Node) string {
	return g.p.text[g.name][g.offset(n.Pos()):g.offset(n.End())]
}

func (g *generator) replace(operator string, from, to token.Pos, text string) {
	*g.out = append(*g.out, mutant{file: g.name, start: g.offset(from), end: g.offset(to), text: text, operator: operator, function: functionAt(g.f, from)})
}

func (g *generator) node(operator string, n ast.Node, text string) {
	g.replace(operator, n.Pos(), n.End(), text)
}

var swapped = map[token.Token]string{
	token.LSS: "<=", token.LEQ: "<", token.GTR: ">=", token.GEQ: ">", token.EQL: "!=", token.NEQ: "==",
	token.LAND: "||", token.LOR: "&&", token.ADD: "-", token.SUB: "+", token.MUL: "/", token.QUO: "*",
	token.SHL: ">>", token.SHR: "<<", token.AND: "|", token.OR: "&",
}

func (g *generator) visit(n ast.Node) bool {
	if n == nil {
		g.stack = g.stack[:len(g.stack)-1]
		return false
	}
	var parent ast.Node
	if len(g.stack) > 0 {
		parent = g.stack[len(g.stack)-1]
	}
	switch n := n.(type) {
	case *ast.ImportSpec:
		return false
	case *ast.IfStmt:
		g.node("negate condition", n.Cond, "!("+g.source(n.Cond)+")")
		g.empty("remove branch", n.Body)
		if b, ok := n.Else.(*ast.BlockStmt); ok {
			g.empty("remove branch", b)
		}
	case *ast.ForStmt:
		g.empty("remove loop body", n.Body)
	case *ast.RangeStmt:
		g.empty("remove loop body", n.Body)
	case *ast.BinaryExpr:
		g.binary(n)
	case *ast.UnaryExpr:
		if n.Op == token.NOT {
			g.node("remove negation", n, g.source(n.X))
		}
	case *ast.ExprStmt, *ast.DeferStmt, *ast.GoStmt, *ast.SendStmt:
		if _, ok := parent.(*ast.CommClause); !ok || g.inBody(parent.(*ast.CommClause).Body, n.(ast.Stmt)) {
			g.node("drop statement", n, "")
		}
	case *ast.AssignStmt:
		g.assignment(n, parent)
	case *ast.IncDecStmt:
		g.node("drop statement", n, "")
		g.replace("swap ++ and --", n.TokPos, n.TokPos+2, map[token.Token]string{token.INC: "--", token.DEC: "++"}[n.Tok])
	case *ast.ReturnStmt:
		for _, r := range n.Results {
			g.result(r)
		}
	case *ast.BranchStmt:
		if n.Label == nil && (n.Tok == token.BREAK || n.Tok == token.CONTINUE) {
			g.node("swap break and continue", n, map[token.Token]string{token.BREAK: "continue", token.CONTINUE: "break"}[n.Tok])
		}
	case *ast.CaseClause:
		g.node("remove case", n, "")
		if len(n.Body) > 0 {
			g.replace("remove branch", n.Body[0].Pos(), n.Body[len(n.Body)-1].End(), "")
		}
		for _, e := range n.List {
			if tv := g.p.info.Types[e]; tv.Value == nil && isBool(tv.Type) {
				g.node("negate condition", e, "!("+g.source(e)+")")
			}
		}
	case *ast.CommClause:
		g.node("remove select case", n, "")
		if len(n.Body) > 0 {
			g.replace("remove branch", n.Body[0].Pos(), n.Body[len(n.Body)-1].End(), "")
		}
	case *ast.KeyValueExpr:
		if lit, ok := parent.(*ast.CompositeLit); ok {
			g.element(lit, n)
		}
	case *ast.Ident:
		if c, ok := g.p.info.Uses[n].(*types.Const); ok && c.Parent() == types.Universe && (n.Name == "true" || n.Name == "false") {
			g.node("other constant", n, map[string]string{"true": "false", "false": "true"}[n.Name])
		}
	case *ast.BasicLit:
		g.literal(n)
	}
	g.stack = append(g.stack, n)
	return true
}

func (g *generator) inBody(body []ast.Stmt, s ast.Stmt) bool { return slices.Contains(body, s) }

func (g *generator) empty(operator string, b *ast.BlockStmt) {
	if len(b.List) > 0 {
		g.replace(operator, b.List[0].Pos(), b.List[len(b.List)-1].End(), "")
	}
}

func (g *generator) binary(n *ast.BinaryExpr) {
	to, ok := swapped[n.Op]
	if tv := g.p.info.Types[n]; !ok || tv.IsType() || tv.Type == nil || tv.Value != nil && n.Op != token.SHL && n.Op != token.ADD {
		return
	}
	if b, ok := g.p.info.Types[n.X].Type.Underlying().(*types.Basic); n.Op == token.ADD && ok && b.Info()&types.IsString != 0 {
		return
	}
	operator := "swap operator"
	switch n.Op {
	case token.LSS, token.LEQ, token.GTR, token.GEQ:
		operator = "comparison boundary"
	case token.LAND, token.LOR:
		g.node("drop operand", n, g.source(n.X))
		g.node("drop operand", n, g.source(n.Y))
	}
	g.replace(operator, n.OpPos, n.OpPos+token.Pos(len(n.Op.String())), to)
}

// assignment drops an assignment that declares nothing; a mutant that leaves a
// variable unused does not compile and is not counted.
func (g *generator) assignment(n *ast.AssignStmt, parent ast.Node) {
	if n.Tok == token.DEFINE {
		return
	}
	switch s := parent.(type) {
	case *ast.CommClause:
		if !g.inBody(s.Body, n) {
			return
		}
	case *ast.BlockStmt, *ast.CaseClause:
	default: // the first or last part of an if, a for or a switch
		return
	}
	g.node("drop assignment", n, "")
}

var errorType = types.Universe.Lookup("error").Type()

func (g *generator) result(r ast.Expr) {
	tv := g.p.info.Types[r]
	switch {
	case tv.Type == nil || tv.IsNil():
	case types.Identical(tv.Type, errorType) || types.Implements(tv.Type, errorType.Underlying().(*types.Interface)):
		g.node("return no error", r, "nil")
	case isBool(tv.Type) && tv.Value == nil:
		g.node("negate result", r, "!("+g.source(r)+")")
	default:
		if b, ok := tv.Type.Underlying().(*types.Basic); ok && tv.Value == nil && b.Info()&types.IsNumeric != 0 {
			g.node("return zero", r, "0")
		} else if ok && tv.Value == nil && b.Info()&types.IsString != 0 {
			g.node("return zero", r, `""`)
		}
	}
}

// element leaves out a field of a struct.
func (g *generator) element(lit *ast.CompositeLit, n *ast.KeyValueExpr) {
	if t := g.p.info.Types[lit].Type; t != nil {
		if ptr, ok := t.Underlying().(*types.Pointer); ok {
			t = ptr.Elem()
		}
		if _, ok := t.Underlying().(*types.Struct); !ok {
			return
		}
	}
	end := g.offset(n.End())
	if rest := g.p.text[g.name][end:]; strings.HasPrefix(rest, ",") {
		end++
	}
	*g.out = append(*g.out, mutant{file: g.name, start: g.offset(n.Pos()), end: end, operator: "drop field", function: functionAt(g.f, n.Pos())})
}

var looksLikeSQL = regexp.MustCompile(`\b(SELECT|INSERT INTO|UPDATE|DELETE FROM|WHERE|RETURNING|VALUES|SET LOCAL|CREATE|ALTER|GRANT|CASE WHEN|ON CONFLICT|FROM|ORDER BY|COMMIT|BEGIN)\b|^\s*AND\b`)

func (g *generator) literal(n *ast.BasicLit) {
	switch n.Kind {
	case token.INT:
		v, err := strconv.ParseInt(n.Value, 0, 64)
		if err != nil {
			return
		}
		g.node("other constant", n, strconv.FormatInt(v+1, 10))
		if v > 1 {
			g.node("other constant", n, "0")
		}
	case token.STRING:
		switch parent := g.stack[len(g.stack)-1].(type) {
		case *ast.Field: // a tag
			return
		case *ast.BinaryExpr:
			if (parent.Op == token.EQL || parent.Op == token.NEQ) && len(n.Value) > 2 {
				g.node("other constant", n, `""`)
			}
		}
		if looksLikeSQL.MatchString(n.Value) {
			function := functionAt(g.f, n.Pos())
			mutateSQL(g.p.text[g.name], g.offset(n.Pos())+1, g.offset(n.End())-1, func(m mutant) {
				m.file, m.function = g.name, function
				*g.out = append(*g.out, m)
			})
		}
	}
}

func isBool(t types.Type) bool {
	if t == nil {
		return false
	}
	b, ok := t.Underlying().(*types.Basic)
	return ok && b.Info()&types.IsBoolean != 0
}

// SQL is changed word by word. An invalid change is a syntax error, which the
// tests show and which is not counted.
var (
	sqlToken = regexp.MustCompile(`--[^\n]*|'(?:[^'\n])*'|"[^"\n]*"|[<>=!~+\-*/@#%^&|?:]+|\$[0-9]+|[A-Za-z_][A-Za-z0-9_$]*|[0-9]+(?:\.[0-9]+)?`)
	sqlSwaps = map[string][]string{
		"<": {"<="}, "<=": {"<"}, ">": {">="}, ">=": {">"}, "=": {"<>"}, "<>": {"="}, "+": {"-"}, "-": {"+"},
		"AND": {"OR"}, "OR": {"AND"}, "NOT": {""}, "true": {"false"}, "false": {"true"}, "TRUE": {"FALSE"}, "FALSE": {"TRUE"},
		"greatest": {"least"}, "least": {"greatest"}, "clock_timestamp": {"now"}, "now": {"clock_timestamp"},
		"pg_advisory_xact_lock": {"pg_advisory_xact_lock_shared"}, "pg_advisory_xact_lock_shared": {"pg_advisory_xact_lock"},
		"DISTINCT": {""}, "UPDATE": {"SHARE"}, "NULL": {"NOT NULL"}, "max": {"min"}, "min": {"max"}, "SECURITY": nil,
	}
	sqlLine = regexp.MustCompile(`(?m)^[ \t]*(?:(?:AND|OR|WHERE|FOR|ORDER BY|HAVING|LIMIT|PERFORM|RAISE|RETURN|SET|REVOKE|GRANT|CHECK|CONSTRAINT|IF)\b[^\n]*|[^\n]*;)$`)
)

func mutateSQL(text string, from, to int, add func(mutant)) {
	one := func(operator string, start, end int, with string) {
		add(mutant{start: start, end: end, text: with, operator: operator, sql: true})
	}
	part := text[from:to]
	for _, at := range sqlToken.FindAllStringIndex(part, -1) {
		word, start, end := part[at[0]:at[1]], from+at[0], from+at[1]
		for _, with := range sqlSwaps[word] {
			one("SQL: "+word+" -> "+with, start, end, with)
		}
		if word[0] >= '0' && word[0] <= '9' {
			if v, err := strconv.ParseInt(word, 10, 64); err == nil {
				one("SQL: other constant", start, end, strconv.FormatInt(v+1, 10))
			}
		}
	}
	for _, at := range sqlLine.FindAllStringIndex(part, -1) {
		if !strings.HasPrefix(strings.TrimSpace(part[at[0]:at[1]]), "--") {
			one("SQL: remove line", from+at[0], from+at[1], "")
		}
	}
}

var sqlCreate = regexp.MustCompile(`CREATE (?:OR REPLACE )?(?:FUNCTION|PROCEDURE|TABLE|VIEW|TRIGGER|INDEX) (?:IF NOT EXISTS )?([a-z_.]+)`)

// sqlFunction names what the SQL before a position last created.
func sqlFunction(before string) string {
	all := sqlCreate.FindAllStringSubmatch(before, -1)
	if len(all) == 0 {
		return ""
	}
	return all[len(all)-1][1]
}
