package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// mutant is one replacement of bytes in one file of the package.
type mutant struct {
	index      int    // its place in the seed's order
	file       string // base name; below the package's directory for embedded files
	start, end int    // offsets of what is replaced
	text       string // what replaces it
	operator   string
	function   string // "Decide", "Memory.Check", "fencepost.raise"; "" at package level
	sql        bool
}

// goPackage is the mutated package: its sources, parsed and with types.
type goPackage struct {
	dir, path string
	names     []string          // Go files and embedded SQL files, in order
	text      map[string]string // by name
	fset      *token.FileSet
	files     map[string]*ast.File
	info      *types.Info
	importer  types.Importer
	// embedding are the package's variables into which SQL files are embedded.
	embedding []types.Object
}

// listed is what go list reports about a package.
type listed struct {
	Dir, ImportPath, Export string
	GoFiles, EmbedFiles     []string
	TestGoFiles             []string
	XTestGoFiles            []string
	TestEmbedFiles          []string
	Standard                bool
	Module                  *struct{ Main bool }
}

// goList lists packages as seen from root.
func goList(ctx context.Context, root string, args ...string) ([]listed, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"list"}, args...)...)
	cmd.Dir = root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	var all []listed
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var l listed
		if err := dec.Decode(&l); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		all = append(all, l)
	}
}

// load reads and type-checks the package that pattern names.
func load(ctx context.Context, root, pattern string) (*goPackage, error) {
	found, err := goList(ctx, root, "-json=Dir,ImportPath,GoFiles,EmbedFiles", pattern)
	if err != nil {
		return nil, err
	}
	if len(found) != 1 {
		return nil, fmt.Errorf("%s is %d packages, not one", pattern, len(found))
	}
	l := found[0]
	exports := map[string]string{}
	dependencies, err := goList(ctx, root, "-export", "-deps", "-json=ImportPath,Export", pattern)
	if err != nil {
		return nil, err
	}
	for _, d := range dependencies {
		exports[d.ImportPath] = d.Export
	}
	p := &goPackage{dir: l.Dir, path: l.ImportPath, text: map[string]string{}, fset: token.NewFileSet(), files: map[string]*ast.File{}}
	p.importer = importer.ForCompiler(p.fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	p.names = l.GoFiles
	for _, name := range l.EmbedFiles {
		if strings.HasSuffix(name, ".sql") {
			p.names = append(p.names, name)
		}
	}
	slices.Sort(p.names)
	for _, name := range p.names {
		b, err := os.ReadFile(filepath.Join(p.dir, name))
		if err != nil {
			return nil, err
		}
		p.text[name] = string(b)
		if !strings.HasSuffix(name, ".go") {
			continue
		}
		if p.files[name], err = parser.ParseFile(p.fset, name, b, parser.ParseComments|parser.SkipObjectResolution); err != nil {
			return nil, err
		}
	}
	p.info = &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{}}
	if err := p.check(p.files, p.info); err != nil {
		return nil, err
	}
	p.findEmbedding()
	return p, nil
}

func (p *goPackage) check(files map[string]*ast.File, info *types.Info) error {
	var list []*ast.File
	for _, name := range p.names {
		if f := files[name]; f != nil {
			list = append(list, f)
		}
	}
	_, err := (&types.Config{Importer: p.importer}).Check(p.path, p.fset, list, info)
	return err
}

var embedsSQL = regexp.MustCompile(`(?m)^//go:embed .*(\.sql|/\*|migrations)`)

func (p *goPackage) findEmbedding() {
	for _, f := range p.files {
		for _, d := range f.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Doc == nil || g.Tok != token.VAR {
				continue
			}
			var doc strings.Builder
			for _, c := range g.Doc.List {
				doc.WriteString(c.Text + "\n")
			}
			if !embedsSQL.MatchString(doc.String()) {
				continue
			}
			for _, s := range g.Specs {
				for _, name := range s.(*ast.ValueSpec).Names {
					p.embedding = append(p.embedding, p.info.Defs[name])
				}
			}
		}
	}
}

// apply returns the mutant's file.
func (p *goPackage) apply(m mutant) string {
	text := p.text[m.file]
	return text[:m.start] + m.text + text[m.end:]
}

// compiles reports whether the package has no error of syntax or type with the
// mutant in it. SQL shows its errors only when it runs.
func (p *goPackage) compiles(m mutant) bool {
	if !strings.HasSuffix(m.file, ".go") {
		return true
	}
	f, err := parser.ParseFile(p.fset, m.file, p.apply(m), parser.SkipObjectResolution)
	if err != nil {
		return false
	}
	files := map[string]*ast.File{}
	for name, original := range p.files {
		files[name] = original
	}
	files[m.file] = f
	return p.check(files, nil) == nil
}

// line is the number of the line in which the mutant begins.
func (p *goPackage) line(m mutant) int { return 1 + strings.Count(p.text[m.file][:m.start], "\n") }

// diff returns the mutant as removed and added lines, without indentation and
// line numbers, so that it names the mutant wherever the code moves.
func (p *goPackage) diff(m mutant) string {
	before, after := lines(p.text[m.file]), lines(p.apply(m))
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

// place is a range of lines and columns of a Go file, as in coverage profiles.
type place struct {
	file      string
	line, col int
}

// anchors returns the places that a test must run to notice the mutant. For
// package-level code it is where the code is used. None means unknown: every
// test may notice it.
func (p *goPackage) anchors(m mutant) []place {
	var objects []types.Object
	if f := p.files[m.file]; f == nil {
		objects = p.embedding
	} else {
		tf := p.fset.File(f.Pos())
		pos := tf.Pos(m.start)
		decl := declarationAt(f, pos)
		if _, ok := decl.(*ast.FuncDecl); ok {
			at := p.fset.Position(pos)
			return []place{{m.file, at.Line, at.Column}}
		}
		if g, ok := decl.(*ast.GenDecl); ok {
			for _, s := range g.Specs {
				if v, ok := s.(*ast.ValueSpec); ok && v.Pos() <= pos && pos < v.End() {
					for _, name := range v.Names {
						objects = append(objects, p.info.Defs[name])
					}
				}
			}
		}
	}
	var out []place
	for done := 0; done < len(objects); done++ {
		for name, f := range p.files {
			ast.Inspect(f, func(n ast.Node) bool {
				id, ok := n.(*ast.Ident)
				if !ok || p.info.Uses[id] != objects[done] {
					return true
				}
				switch d := declarationAt(f, id.Pos()).(type) {
				case *ast.FuncDecl:
					at := p.fset.Position(id.Pos())
					out = append(out, place{name, at.Line, at.Column})
				case *ast.GenDecl: // a use at package level: follow it, unless it is in a function
					if inFunction(d, id.Pos()) {
						at := p.fset.Position(id.Pos())
						out = append(out, place{name, at.Line, at.Column})
						return true
					}
					for _, s := range d.Specs {
						v, ok := s.(*ast.ValueSpec)
						if !ok || id.Pos() < v.Pos() || id.Pos() >= v.End() {
							continue
						}
						for _, n := range v.Names {
							if o := p.info.Defs[n]; !slices.Contains(objects, o) {
								objects = append(objects, o)
							}
						}
					}
				}
				return true
			})
		}
	}
	return out
}

// inFunction reports whether a position in a declaration is in a function literal.
func inFunction(d ast.Decl, pos token.Pos) (in bool) {
	ast.Inspect(d, func(n ast.Node) bool {
		if f, ok := n.(*ast.FuncLit); ok {
			in = in || f.Body.Pos() <= pos && pos < f.Body.End()
		}
		return !in
	})
	return in
}

func declarationAt(f *ast.File, pos token.Pos) ast.Decl {
	for _, d := range f.Decls {
		if d.Pos() <= pos && pos < d.End() {
			return d
		}
	}
	return nil
}

// function names the function in which a Go position lies.
func functionAt(f *ast.File, pos token.Pos) string {
	d, ok := declarationAt(f, pos).(*ast.FuncDecl)
	if !ok {
		return ""
	}
	if d.Recv == nil || len(d.Recv.List) == 0 {
		return d.Name.Name
	}
	t := d.Recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.IndexExpr:
			t = x.X
		case *ast.IndexListExpr:
			t = x.X
		case *ast.Ident:
			return x.Name + "." + d.Name.Name
		default:
			return d.Name.Name
		}
	}
}

// body is the function around a place.
func (p *goPackage) body(at place) (from, to place) {
	f := p.files[at.file]
	for _, d := range f.Decls {
		begin, end := p.fset.Position(d.Pos()), p.fset.Position(d.End())
		if begin.Line <= at.line && at.line <= end.Line {
			return place{at.file, begin.Line, 0}, place{at.file, end.Line, 0}
		}
	}
	return at, at
}
