package layout

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// cited matches the names in brackets that a doc comment links: [Claim],
// [*RejectedError], [Store.Raise], [guard.Decide], [http.Request.Context].
var cited = regexp.MustCompile(`(?:^|[^\w\]])\[\*?((?:[a-z]\w*\.)?[A-Z]\w*(?:\.[A-Z]\w*)?)\](?:[^\w(:]|$)`)

// Names in brackets in comments exist, so that no comment refers to a
// function's old name.
func TestCitedNamesExist(t *testing.T) {
	n := newNames(t)
	checked := 0
	for _, p := range n.own {
		for _, name := range p.GoFiles {
			for _, problem := range n.check(t, p, filepath.Join(p.Dir, name), nil, &checked) {
				t.Error(problem)
			}
		}
	}
	if checked < 100 {
		t.Errorf("%d names found in comments: the check is broken", checked)
	}
	// The check must be able to fail.
	for i, comment := range []string{"[NoSuchName]", "[*Decide.Method]", "[Claim.NoSuchField]", "[context.NoSuchName]", "[http.Request.NoSuchMethod]", "[nosuchpackage.Name]"} {
		guard := n.own[slices.IndexFunc(n.own, func(p listedPackage) bool { return p.ImportPath == module+"/guard" })]
		source := "package guard\n\n// See " + comment + ".\nvar x int\n"
		if len(n.check(t, guard, fmt.Sprintf("control%d.go", i), source, new(int))) != 1 {
			t.Errorf("%s was not noticed", comment)
		}
	}
}

type listedPackage struct {
	ImportPath, Dir  string
	GoFiles, Imports []string
	Export           string // the file in the build cache that importers read
}

func (p listedPackage) ours() bool {
	return p.ImportPath == module || strings.HasPrefix(p.ImportPath, module+"/")
}

var listedOnce = sync.OnceValues(func() ([]listedPackage, error) {
	return list("-json=ImportPath,Dir,GoFiles,Imports", "./...", "net/http")
})

// list lists packages and what they import.
func list(args ...string) (all []listedPackage, err error) {
	cmd := exec.Command("go", append([]string{"list", "-deps"}, args...)...)
	cmd.Dir = "../.."
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", cmd, err, &said)
	}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listedPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
}

// listed lists the packages of the root module and what they import, without tests.
// net/http is for the controls. One run of go list serves all tests of this package.
func listed(t *testing.T) []listedPackage {
	t.Helper()
	all, err := listedOnce()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// names looks names up in this module's packages and in what they import. It
// parses what it looks at, once, and checks no types.
type names struct {
	fset     *token.FileSet
	own      []listedPackage
	packages map[string][]listedPackage // by the last element of the path
	files    map[string]*ast.File
	declared map[string]map[string]bool // by package: what it declares, unexported names too
}

var majorVersion = regexp.MustCompile(`^v[0-9]+$`)

func newNames(t *testing.T) *names {
	t.Helper()
	n := &names{fset: token.NewFileSet(), packages: map[string][]listedPackage{}, files: map[string]*ast.File{}, declared: map[string]map[string]bool{}}
	for _, p := range listed(t) {
		last := path.Base(p.ImportPath)
		if majorVersion.MatchString(last) {
			last = path.Base(path.Dir(p.ImportPath))
		}
		n.packages[last] = append(n.packages[last], p)
		if p.ours() {
			n.own = append(n.own, p)
		}
	}
	return n
}

// parse returns a file of a package, of which it reads each once.
func (n *names) parse(t *testing.T, file string, source any) *ast.File {
	t.Helper()
	if n.files[file] == nil {
		f, err := parser.ParseFile(n.fset, file, source, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		n.files[file] = f
	}
	return n.files[file]
}

// check returns the problems with names in the comments of a file.
func (n *names) check(t *testing.T, p listedPackage, file string, source any, checked *int) (problems []string) {
	t.Helper()
	for _, group := range n.parse(t, file, source).Comments {
		for _, m := range cited.FindAllStringSubmatch(group.Text(), -1) {
			*checked++
			if !n.exists(t, p, m[1]) {
				problems = append(problems, fmt.Sprintf("%s: a comment cites [%s], which does not exist", n.fset.Position(group.Pos()), m[1]))
			}
		}
	}
	return problems
}

// exists reports whether a name is declared, seen from a package.
func (n *names) exists(t *testing.T, p listedPackage, name string) bool {
	t.Helper()
	first, rest, _ := strings.Cut(name, ".")
	if ast.IsExported(first) {
		return n.declares(t, p)[name]
	}
	return slices.ContainsFunc(n.packages[first], func(p listedPackage) bool { return n.declares(t, p)[rest] })
}

// declares returns the names, and the fields and methods as "Type.Name", of a
// package. What a type embeds or is an alias of counts as its own.
func (n *names) declares(t *testing.T, p listedPackage) map[string]bool {
	t.Helper()
	if n.declared[p.ImportPath] != nil {
		return n.declared[p.ImportPath]
	}
	out := map[string]bool{}
	n.declared[p.ImportPath] = out
	type embedding struct {
		outer string
		from  listedPackage
		inner string
	}
	var embedded []embedding
	embed := func(outer string, e ast.Expr) {
		switch e := e.(type) {
		case *ast.Ident:
			embedded = append(embedded, embedding{outer, p, e.Name})
		case *ast.SelectorExpr:
			for _, from := range n.packages[fmt.Sprint(e.X)] {
				embedded = append(embedded, embedding{outer, from, e.Sel.Name})
			}
		}
	}
	for _, name := range p.GoFiles {
		for _, decl := range n.parse(t, filepath.Join(p.Dir, name), nil).Decls {
			switch decl := decl.(type) {
			case *ast.FuncDecl:
				name := decl.Name.Name
				if decl.Recv != nil {
					name = typeName(decl.Recv.List[0].Type) + "." + name
				}
				out[name] = true
			case *ast.GenDecl:
				for _, spec := range decl.Specs {
					switch spec := spec.(type) {
					case *ast.ValueSpec:
						for _, name := range spec.Names {
							out[name.Name] = true
						}
					case *ast.TypeSpec:
						out[spec.Name.Name] = true
						var fields *ast.FieldList
						switch of := spec.Type.(type) {
						case *ast.StructType:
							fields = of.Fields
						case *ast.InterfaceType:
							fields = of.Methods
						default:
							embed(spec.Name.Name, of)
							continue
						}
						for _, field := range fields.List {
							for _, name := range field.Names {
								out[spec.Name.Name+"."+name.Name] = true
							}
							if len(field.Names) == 0 {
								inner := field.Type
								if star, ok := inner.(*ast.StarExpr); ok {
									inner = star.X
								}
								out[spec.Name.Name+"."+typeName(inner)] = true
								embed(spec.Name.Name, inner)
							}
						}
					}
				}
			}
		}
	}
	for range 3 { // so deep
		for _, e := range embedded {
			for name := range n.declares(t, e.from) {
				if member, ok := strings.CutPrefix(name, e.inner+"."); ok {
					out[e.outer+"."+member] = true
				}
			}
		}
	}
	return out
}

// typeName returns the name of a receiver's or an embedded type.
func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return typeName(e.X)
	case *ast.IndexExpr:
		return typeName(e.X)
	case *ast.IndexListExpr:
		return typeName(e.X)
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// testName leaves out the tests of example code.
var testName = regexp.MustCompile(`(?:^|[^\w ]|[^c] )(Test[A-Z]\w*)`)

// prefixes are names that stand for several tests.
var prefixes = []string{"TestMain", "TestLong"}

// Tests that comments and documents name exist.
func TestCitedTestsExist(t *testing.T) {
	fset := token.NewFileSet()
	there := map[string]bool{}
	type citation struct{ where, name string }
	var citations []citation
	err := filepath.WalkDir(root(t), func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(d.Name(), ".") && d.Name() != ".github":
			return filepath.SkipDir
		case strings.HasSuffix(file, ".md"):
			text, err := os.ReadFile(file)
			for _, name := range testName.FindAllStringSubmatch(string(text), -1) {
				citations = append(citations, citation{file, name[1]})
			}
			return err
		case !strings.HasSuffix(file, ".go"):
			return nil
		}
		f, err := parser.ParseFile(fset, file, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range f.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok {
				there[fn.Name.Name] = true
			}
		}
		for _, group := range f.Comments {
			for _, name := range testName.FindAllStringSubmatch(group.Text(), -1) {
				citations = append(citations, citation{fset.Position(group.Pos()).String(), name[1]})
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range citations {
		if !there[c.name] && !slices.Contains(prefixes, c.name) {
			t.Errorf("%s names %s, which does not exist", c.where, c.name)
		}
	}
	if len(citations) < 10 || there["TestNoSuchThing"+"AtAll"] || !there["TestCitedTestsExist"] {
		t.Errorf("%d citations: the check is broken", len(citations))
	}
}
