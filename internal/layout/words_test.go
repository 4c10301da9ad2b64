package layout

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// unwanted are words that make a native speaker stumble, and what to write. The
// glossary in .github/CONTRIBUTING.md has the terms.
var unwanted = []struct {
	word    *regexp.Regexp
	instead string
}{
	{whole(`answer(s|ed|ing)?`), "response, respond"},
	{whole(`(is|are) no`), "is not, does not, there is no"},
	{whole(`alone`), "only"},
	{whole(`meanwhile`), "in the meantime, by then, or when it happened"},
	{whole(`beside`), "with, next to, while"},
	{whole(`also one`), "even one"},
	{regexp.MustCompile(`, too([.,;:)]|$)`), "also"},
	{whole(`told`), "notified"},
	{whole(`burn(s|ed|t|ing)?`), "invalidate"},
	{whole(`onlookers?`), "watcher"},
	{whole(`given up`), "abandoned"},
	{whole(`learned`), "known"},
	{whole(`for ever`), "forever"},
	{whole(`spends?`), "invalidate"},
	{whole(`in line`), "in the queue"},
	{whole(`(joins?|left|in|out of) the line`), "the queue"},
	{whole(`by only`), "only by, or without the word"},
	{whole(`says the server`), "a subject first"},
}

// usual are phrases in which such a word is what everybody writes.
var usual = regexp.MustCompile(`(?i)\bthere (is|are) no\b|\b(is|are) no (longer|more|less)\b|\bstand(s|ing)? alone\b|\bin line \d|fencepost\.spend\(`)

func whole(word string) *regexp.Regexp { return regexp.MustCompile(`(?i)\b` + word + `\b`) }

// Comments, messages and pages of the whole tree use the field's words. Tests and test
// data are left out.
func TestWords(t *testing.T) {
	read := 0
	check := func(file string) {
		texts, err := prose(filepath.Join(root(t), file))
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range texts {
			read++
			for _, problem := range checkWords(text.text) {
				t.Errorf("%s:%d: %s", file, text.line, problem)
			}
		}
	}
	walk(t, func(file string, _ fs.DirEntry) { check(file) })
	if read < 5000 {
		t.Errorf("%d texts read: the check is broken", read)
	}
	// The check must be able to fail.
	for _, text := range []string{"The server answers.", "It is no race", "by the token alone", "This one, too."} {
		if len(checkWords(text)) != 1 {
			t.Errorf("not noticed: %q", text)
		}
	}
	if problems := checkWords("There is no lease, and it is no longer valid."); len(problems) != 0 {
		t.Errorf("%q", problems)
	}
}

func checkWords(text string) (problems []string) {
	text = usual.ReplaceAllString(text, "")
	for _, u := range unwanted {
		if at := u.word.FindStringIndex(text); at != nil {
			around := text[max(0, at[0]-40):min(len(text), at[1]+40)]
			problems = append(problems, fmt.Sprintf("%q: write %s: %q", text[at[0]:at[1]], u.instead, around))
		}
	}
	return problems
}

// sqlProse is a literal of more than one word, or a comment behind a statement.
var sqlProse = regexp.MustCompile(`'[^']* [^']*'|--.*`)

type passage struct {
	line int
	text string
}

// prose returns what people read of a file: the comments and messages of Go, the
// comments of SQL, and pages.
func prose(file string) (texts []passage, err error) {
	if strings.HasSuffix(file, "_test.go") || strings.Contains(filepath.ToSlash(file), "/testdata/") {
		return nil, nil
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	switch filepath.Ext(file) {
	case ".md", ".sql":
		sql := filepath.Ext(file) == ".sql"
		var paragraph []string
		for i, line := range append(strings.Split(string(content), "\n"), "") {
			text := strings.TrimSpace(line)
			if comment, there := strings.CutPrefix(text, "--"); sql && there {
				text = strings.TrimSpace(comment)
			} else if sql {
				for _, said := range sqlProse.FindAllString(text, -1) {
					texts = append(texts, passage{i + 1, said})
				}
				text = ""
			}
			if text != "" {
				paragraph = append(paragraph, text)
				continue
			}
			if paragraph != nil {
				texts = append(texts, passage{i + 1 - len(paragraph), strings.Join(paragraph, " ")})
			}
			paragraph = nil
		}
	case ".go":
		files := token.NewFileSet()
		parsed, err := parser.ParseFile(files, file, content, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, group := range parsed.Comments {
			texts = append(texts, passage{files.Position(group.Pos()).Line, strings.Join(strings.Fields(group.Text()), " ")})
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			// One word is a name, not a message.
			if literal, ok := n.(*ast.BasicLit); ok && literal.Kind == token.STRING && strings.Contains(literal.Value, " ") {
				if text, err := strconv.Unquote(literal.Value); err == nil {
					texts = append(texts, passage{files.Position(literal.Pos()).Line, text})
				}
			}
			return true
		})
	}
	return texts, nil
}
