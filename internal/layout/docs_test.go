package layout

import (
	"fmt"
	"go/ast"
	"go/doc/comment"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// documented lists the packages whose documentation has a fixed order: what it
// guarantees, what it does not, how it is used, then the rest.
var documented = []string{
	"guard", "guard/proof", "sqlfence", "sqlfence/sqladmin", "sqlfence/sqlrow", "sqlfence/sqltest", "s3fence", "httpfence", "lockclient", "lockclient/pglock", "lockclient/lockadmin", "lockclient/lockadmin/pgadmin", "lockclient/lockhttp",
	"lockclient/etcdlock", "lockclient/redislock", "lockclient/zklock", "lockclient/locktest",
}

var inOrder = []string{"What it guarantees", "What it does not", "Use"}

// Packages document the same things in the same order, on one page.
func TestPackageDocs(t *testing.T) {
	for _, dir := range documented {
		if err := checkDoc(packageDoc(t, dir)); err != nil {
			t.Errorf("%s: %v", dir, err)
		}
	}
	// The check must be able to fail.
	for _, text := range []string{
		"Package p.\n\n# Use\n\n# What it guarantees\n\n# What it does not\n", "Package p.\n\n# What it guarantees\n\n# Use\n",
		"Package p.\n\n# What it guarantees\n\n# What it does not\n\n# Use\n" + strings.Repeat("\n.", 120),
	} {
		if checkDoc(text) == nil {
			t.Errorf("not noticed: %.60q", text)
		}
	}
}

func checkDoc(text string) error {
	var headings []string
	for _, m := range regexp.MustCompile(`(?m)^# (.*)$`).FindAllStringSubmatch(text, -1) {
		if slices.Contains(inOrder, m[1]) {
			headings = append(headings, m[1])
		}
	}
	if !slices.Equal(headings, inOrder) {
		return fmt.Errorf("the order is %q, not %q", headings, inOrder)
	}
	if n := strings.Count(strings.TrimSpace(text), "\n") + 1; n > 120 {
		return fmt.Errorf("%d lines, 120 are allowed", n)
	}
	return nil
}

// A package of several files says where to read on, and names each of them.
func TestFilesAreNamed(t *testing.T) {
	const few = 5
	checked := 0
	for _, dir := range append([]string{"s3fence/s3test", "guard/guardtest", "guard/guardotel", "httpfence/grpcfence"}, documented...) {
		files, err := filepath.Glob(filepath.Join(root(t), dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		files = slices.DeleteFunc(files, func(f string) bool { return strings.HasSuffix(f, "_test.go") || filepath.Base(f) == "doc.go" })
		if len(files) < few {
			continue
		}
		text := packageDoc(t, dir)
		for _, file := range files {
			if checked++; !strings.Contains(text, filepath.Base(file)) {
				t.Errorf("%s: the documentation of the package does not name %s", dir, filepath.Base(file))
			}
		}
	}
	if checked < 80 || strings.Contains(packageDoc(t, "guard"), "nosuchfile.go") {
		t.Errorf("%d files: the check is broken", checked)
	}
}

// Go in the packages' documentation can be parsed, and the names of this module
// in it exist.
func TestDocSnippets(t *testing.T) {
	n := newNames(t)
	checked := 0
	for _, dir := range documented {
		at := slices.IndexFunc(n.own, func(p listedPackage) bool { return p.ImportPath == module+"/"+dir })
		if at < 0 {
			continue // a module of its own
		}
		for _, code := range snippets(packageDoc(t, dir)) {
			for _, problem := range n.checkSnippet(t, n.own[at], code, &checked) {
				t.Errorf("%s: %s in\n%s", dir, problem, code)
			}
		}
	}
	if checked < 40 {
		t.Errorf("%d names found in snippets: the check is broken", checked)
	}
	// The check must be able to fail.
	for _, code := range []string{"err := guard.NoSuchName(ctx)\n", "opts := &lockclient.AcquireOptions{NoSuchField: 1}\n", "err := :\nreturn\n"} {
		if len(n.checkSnippet(t, n.own[0], code, new(int))) == 0 {
			t.Errorf("not noticed: %s", code)
		}
	}
}

// snippets returns the code blocks that are Go: they assign something.
func snippets(text string) (out []string) {
	for _, block := range new(comment.Parser).Parse(text).Content {
		if code, ok := block.(*comment.Code); ok && strings.Contains(code.Text, ":=") {
			out = append(out, code.Text)
		}
	}
	return out
}

var create = regexp.MustCompile(`(?m)^(ALTER|CREATE) .*;$`)

func (n *names) checkSnippet(t *testing.T, p listedPackage, code string, checked *int) (problems []string) {
	// "..." stands for what the reader knows.
	body := strings.NewReplacer(", ...)", ")", "{ ... }", "{}", "...\n", "\n").Replace(create.ReplaceAllString(code, ""))
	if !strings.HasPrefix(body, "func ") {
		body = "func _() {\n" + body + "\n}\n"
	}
	f, err := parser.ParseFile(token.NewFileSet(), "snippet.go", "package p\n"+body, parser.SkipObjectResolution)
	if err != nil {
		return []string{err.Error()}
	}
	exists := func(name string) {
		if *checked++; !n.exists(t, p, name) {
			problems = append(problems, name+" does not exist")
		}
	}
	ours := func(e ast.Expr) (string, bool) {
		s, ok := e.(*ast.SelectorExpr)
		if !ok {
			return "", false
		}
		x, ok := s.X.(*ast.Ident)
		if !ok || !ast.IsExported(s.Sel.Name) || !slices.ContainsFunc(n.packages[x.Name], func(p listedPackage) bool { return strings.HasPrefix(p.ImportPath, module) }) {
			return "", false
		}
		return x.Name + "." + s.Sel.Name, true
	}
	ast.Inspect(f, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.SelectorExpr:
			if name, ok := ours(node); ok {
				exists(name)
			}
		case *ast.CompositeLit:
			if name, ok := ours(node.Type); ok {
				for _, e := range node.Elts {
					if kv, ok := e.(*ast.KeyValueExpr); ok {
						if field, ok := kv.Key.(*ast.Ident); ok && ast.IsExported(field.Name) {
							exists(name + "." + field.Name)
						}
					}
				}
			}
		}
		return true
	})
	return problems
}

// packageDoc is a package's documentation.
func packageDoc(t *testing.T, dir string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root(t), dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.PackageClauseOnly)
		if err != nil {
			t.Fatal(err)
		}
		if f.Doc != nil && !strings.HasSuffix(file, "_test.go") {
			return f.Doc.Text()
		}
	}
	t.Fatalf("%s has no documentation", dir)
	return ""
}
