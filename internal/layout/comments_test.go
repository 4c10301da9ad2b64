package layout

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
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
	for _, comment := range []string{"[NoSuchName]", "[*Decide.Method]", "[Claim.NoSuchField]", "[context.NoSuchName]", "[http.Request.NoSuchMethod]", "[nosuchpackage.Name]"} {
		guard := n.own[slices.IndexFunc(n.own, func(p listedPackage) bool { return p.ImportPath == module+"/guard" })]
		source := "package guard\n\n// See " + comment + ".\nvar x int\n"
		if len(n.check(t, guard, "control.go", []byte(source), new(int))) != 1 {
			t.Errorf("%s was not noticed", comment)
		}
	}
}

type listedPackage struct {
	ImportPath, Dir, Export string
	GoFiles                 []string
	Standard                bool
}

// names looks names up in this module's packages and in what they import.
type names struct {
	fset     *token.FileSet
	own      []listedPackage
	paths    map[string][]string // by the last element
	importer types.Importer
	declared map[string]map[string]bool // by package: what it declares, unexported names too
}

func newNames(t *testing.T) *names {
	t.Helper()
	n := &names{fset: token.NewFileSet(), paths: map[string][]string{}, declared: map[string]map[string]bool{}}
	exports := map[string]string{}
	// net/http is for the control.
	out := run(t, "go", "list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles,Standard", "./...", "net/http")
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listedPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		exports[p.ImportPath] = p.Export
		last := path.Base(p.ImportPath)
		if regexp.MustCompile(`^v[0-9]+$`).MatchString(last) {
			last = path.Base(path.Dir(p.ImportPath))
		}
		n.paths[last] = append(n.paths[last], p.ImportPath)
		if p.ImportPath == module || strings.HasPrefix(p.ImportPath, module+"/") {
			n.own = append(n.own, p)
		}
	}
	n.importer = importer.ForCompiler(n.fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	return n
}

// check returns the problems with names in the comments of a file.
func (n *names) check(t *testing.T, p listedPackage, file string, source []byte, checked *int) (problems []string) {
	t.Helper()
	var in any
	if source != nil {
		in = source
	}
	f, err := parser.ParseFile(n.fset, file, in, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range f.Comments {
		for _, m := range cited.FindAllStringSubmatch(group.Text(), -1) {
			*checked++
			if !n.exists(t, p, m[1]) {
				problems = append(problems, fmt.Sprintf("%s: a comment cites [%s], which does not exist", n.fset.Position(group.Pos()), m[1]))
			}
		}
	}
	return problems
}

func (n *names) exists(t *testing.T, p listedPackage, name string) bool {
	t.Helper()
	first, rest, _ := strings.Cut(name, ".")
	if ast.IsExported(first) {
		return n.declares(t, p)[name]
	}
	for _, path := range n.paths[first] {
		pkg, err := n.importer.Import(path)
		if err != nil {
			continue // a command has no names
		}
		typeName, member, isMember := strings.Cut(rest, ".")
		object := pkg.Scope().Lookup(typeName)
		if object != nil && isMember {
			object, _, _ = types.LookupFieldOrMethod(object.Type(), true, pkg, member)
		}
		if object != nil {
			return true
		}
	}
	return false
}

// declares reports the names, and the fields and methods as "Type.Name", of one
// of this module's packages.
func (n *names) declares(t *testing.T, p listedPackage) map[string]bool {
	t.Helper()
	if n.declared[p.ImportPath] != nil {
		return n.declared[p.ImportPath]
	}
	out := map[string]bool{}
	var files []*ast.File
	for _, name := range p.GoFiles {
		f, err := parser.ParseFile(n.fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	// Errors are ignored: go vet finds them.
	pkg, _ := (&types.Config{Importer: n.importer, Error: func(error) {}}).Check(p.ImportPath, n.fset, files, nil)
	for _, name := range pkg.Scope().Names() {
		out[name] = true
		object, ok := pkg.Scope().Lookup(name).(*types.TypeName)
		if !ok {
			continue
		}
		methods := types.NewMethodSet(types.NewPointer(object.Type()))
		for i := range methods.Len() {
			out[name+"."+methods.At(i).Obj().Name()] = true
		}
		switch u := object.Type().Underlying().(type) {
		case *types.Struct:
			for i := range u.NumFields() {
				out[name+"."+u.Field(i).Name()] = true
			}
		case *types.Interface:
			for i := range u.NumMethods() {
				out[name+"."+u.Method(i).Name()] = true
			}
		}
	}
	n.declared[p.ImportPath] = out
	return out
}

// testName leaves out the tests of example code.
var testName = regexp.MustCompile(`(?:^|[^\w ]|[^c] )(Test[A-Z]\w*)`)

// prefixes are names that stand for several tests.
var prefixes = []string{"TestMain", "TestLong", "TestP1"}

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
